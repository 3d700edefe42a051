"""`tachograph bisect KIND --good A --bad B -- command {}`: where a command begins to fail, or because of which node."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tachograph.bisect.boundary import Boundary, Candidates, next_value
from tachograph.bisect.nodes import TOGETHER, UNPROVEN, BadNode, expand, next_set
from tachograph.bisect.scale import changes
from tachograph.bisect.state import BisectState, StateError, asked_for, load, save
from tachograph.bisect.tally import Tally, Trial, lead_for
from tachograph.bisect.trial import CannotRunError, fill, run
from tachograph.command_line import CommandParser, versioned_json
from tachograph.processes.process_tree import adopt_orphans
from tachograph.processes.signals import signals_as_exit
from tachograph.text import duration, humanize
from tachograph.text.printable import printable
from tachograph.text.wrapping import fitted

KINDS = ("ranks", "nodes", "batch", "layers")
EPILOG = r"""Each trial runs the command with {} replaced. It works if it exits with status
0; 125, 126 and 127 stop the bisection. For nodes, {} is a comma-separated list,
{count} is their number, {first} the first of them.

examples:
  tachograph bisect ranks --good 8 --bad 64 --step 8 -- srun -n {} train.sh
  tachograph bisect batch --good 1 --bad 64 -- torchrun train.py --batch {}
  tachograph bisect nodes --bad 'gpu[01-64]' --fewest 2 -- \
      srun -w {} -N {count} all_reduce_perf -b 1G
  tachograph bisect layers --good 24 --bad 96 -- python train.py --layers {}

exit status:
  0    found
  1    nothing found: the good end fails, the bad end works, no single node is
       to blame, or it cannot be determined
  2    wrong arguments
  4    the command cannot be run, or the state belongs to another bisection
  130  interrupted; the same command goes on from there
"""


@dataclass(frozen=True)
class _Plan:
    """The search of a kind: the next value from the trials so far, and the words that replace `{}` for a value."""

    next: Callable[[Sequence[Trial]], str | Boundary | BadNode]
    words: Callable[[str], Mapping[str, str]]


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph bisect",
        usage="tachograph bisect {ranks,nodes,batch,layers} [--good A] --bad B [options]\n"
        "                         -- command {}",
        description="Find the largest value at which a command works, just below the smallest at\n"
        "which it fails, or the one node that makes it fail.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS, help="what changes from trial to trial")
    parser.add_argument("--good", metavar="A", help="a number that works; for nodes: good ones, to fill trials up with")
    parser.add_argument("--bad", metavar="B", required=True, help="a number that fails; for nodes: the suspects")
    parser.add_argument("--step", type=int, default=1, metavar="N", help="try only multiples of N (default: 1)")
    parser.add_argument("--fewest", type=int, default=1, metavar="N", help="fewest nodes in a trial (default: 1)")
    parser.add_argument(
        "--time-limit",
        metavar="TIME",
        help="for a trial, such as 10m: after that it has failed, and is ended with all that it started",
    )
    parser.add_argument(
        "--grace", default="10s", metavar="TIME", help="from SIGTERM to SIGKILL, when a trial is ended (default: 10s)"
    )
    parser.add_argument(
        "--flaky", type=float, default=0.0, metavar="PERCENT",
        help="share of runs with the wrong outcome; decisive values are repeated until that cannot mislead",
    )  # fmt: skip
    parser.add_argument(
        "--ranks-per-node", type=int, default=8, metavar="N", help="to say what else changes at a scale (default: 8)"
    )
    parser.add_argument("--state", type=Path, metavar="FILE", help="default: tachograph-bisect-KIND.json")
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="outputs of trials (default: FILE.logs)")
    parser.add_argument("--json", action="store_true", help="print an object")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = _parser()
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    command = words[place + 1 :]
    try:
        given = parser.parse_args(words[:place])
        plan, asked, limit, grace = _checked(parser, given, command)
    except SystemExit as end:
        return int(end.code or 0)
    path = given.state or Path(f"tachograph-bisect-{given.kind}.json")
    folder = given.log or path.with_name(f"{path.name}.logs")

    def start(value: str, number: int) -> Trial:
        return run(value, fill(command, plan.words(value)), folder / f"{number:03}.log", limit, grace)

    try:
        adopt_orphans()
        state = load(path, asked)
        folder.mkdir(parents=True, exist_ok=True)
        save(path, state)
        with signals_as_exit():
            found = _bisect(plan, state, path, start)
    except (CannotRunError, StateError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(printable(f"tachograph bisect: {error}"), file=sys.stderr)
        return 4
    except KeyboardInterrupt:
        print(f"\ntachograph bisect: interrupted; {path} has what is known: the same command goes on", file=sys.stderr)
        return 130
    return _show(given, found, state)


def _checked(
    parser: argparse.ArgumentParser, given: argparse.Namespace, command: Sequence[str]
) -> tuple[_Plan, dict[str, Any], float | None, float]:
    """Return the plan, what must be alike to go on, time limit and grace; exit for arguments that do not fit."""
    if not command:
        parser.error("expected -- and the command to run")
    if not any("{}" in word for word in command):
        parser.error("the command has no {}: that is where the value goes")
    if not 0 <= given.flaky < 45:
        parser.error(f"--flaky {given.flaky:g}: expected a percentage below 45")
    if min(given.step, given.fewest, given.ranks_per_node) < 1:
        parser.error("--step, --fewest and --ranks-per-node must be 1 or more")
    try:
        grace = duration.parse(given.grace)
        limit = None if given.time_limit is None else duration.parse(given.time_limit)
        if limit == 0:
            parser.error("--time-limit must be above 0")
        plan, figures = (_of_nodes if given.kind == "nodes" else _of_numbers)(given)
    except ValueError as error:
        parser.error(str(error))
    return plan, asked_for(given.kind, command, **figures), limit, grace


def _of_nodes(given: argparse.Namespace) -> tuple[_Plan, dict[str, object]]:
    suspects, good = expand(given.bad), expand(given.good) if given.good else []
    if both := sorted({*suspects} & {*good}):
        raise ValueError(f"{both[0]} is in --good and in --bad")
    lead = lead_for(given.flaky / 100) if given.flaky else 1

    def following(trials: Sequence[Trial]) -> str | BadNode:
        found = next_set(suspects, good, given.fewest, trials, lead)
        return found if isinstance(found, BadNode) else ",".join(found)

    def words(value: str) -> Mapping[str, str]:
        names = value.split(",")
        return {"": value, "count": str(len(names)), "first": names[0]}

    return _Plan(following, words), {"good": good, "bad": suspects, "fewest": given.fewest}


def _of_numbers(given: argparse.Namespace) -> tuple[_Plan, dict[str, object]]:
    if given.good is None:
        raise ValueError("--good is missing: a number that works")
    ends = [_number(name, getattr(given, name)) for name in ("good", "bad")]
    if ends[0] == ends[1]:
        raise ValueError(f"--good and --bad are both {ends[0]}")
    within = Candidates(ends[0], ends[1], given.step)
    lead = lead_for(given.flaky / 100) if given.flaky else 2

    def following(trials: Sequence[Trial]) -> str | Boundary:
        found = next_value(within, trials, lead)
        return found if isinstance(found, Boundary) else str(found)

    return _Plan(following, lambda value: {"": value}), {"good": ends[0], "bad": ends[1], "step": given.step}


def _number(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 0 < value <= 10_000_000:
        raise ValueError(f"--{name} {text:.20}: expected a whole number from 1 to 10,000,000")
    return value


def _bisect(plan: _Plan, state: BisectState, path: Path, start: Callable[[str, int], Trial]) -> Boundary | BadNode:
    """Run trials, by value and number, until the result is known; after each of them the state is on disk."""
    if state.trials:
        print(f"tachograph bisect: {humanize.plural(len(state.trials), 'trial')} of {path} known", file=sys.stderr)
    while isinstance(found := plan.next(state.trials), str):
        trial = start(found, len(state.trials) + 1)
        state.trials.append(trial)
        save(path, state)
        print(
            printable(f"{len(state.trials):3}  {_short(found)}  {_outcome(trial)}  {trial.log}"),
            file=sys.stderr,
            flush=True,
        )
    return found


def _short(value: str) -> str:
    names = value.split(",")
    return value if len(names) <= 4 else f"{names[0]}…{names[-1]} ({len(names)} nodes)"


def _outcome(trial: Trial) -> str:
    took = humanize.span(trial.seconds)
    if trial.works:
        return f"works in {took}"
    if trial.status is None:
        return f"fails: not done after {took}, ended"
    how = f"signal {-trial.status}" if trial.status < 0 else f"status {trial.status}"
    return f"fails after {took}, {how}"


def _show(given: argparse.Namespace, found: Boundary | BadNode, state: BisectState) -> int:
    lines = _culprit(found) if isinstance(found, BadNode) else _boundary(given, found, state)
    flaky = Tally(state.trials, 1).flaky
    is_found = found.node is not None if isinstance(found, BadNode) else not found.wrong
    if given.json:
        content = {"kind": given.kind, "found": is_found, **asdict(found), "says": lines,
                   "flaky": flaky, "trials": [asdict(one) for one in state.trials]}  # fmt: skip
        print(versioned_json(content))
    else:
        counts = {value: Tally(state.trials, 1).counts(value) for value in flaky}
        lines += [f"flaky: {_short(one)} worked in {works} of {runs} runs" for one, (works, runs) in counts.items()]
        print(fitted(*lines))
    return 0 if is_found else 1


def _culprit(found: BadNode) -> list[str]:
    runs = humanize.plural(found.rounds, "run")
    if found.node is not None:
        return [f"{found.node} makes the command fail, found in {runs}. Others may, too: go on with the rest as --bad."]
    if found.why == TOGETHER:
        return [
            f"No single node makes it fail, but all {len(found.among)} together do: a pair, a link, or their number."
        ]
    if found.why == UNPROVEN:
        return [
            f"It cannot be told which node makes it fail: in {runs} no set of nodes worked beside which one could be "
            "convicted.",
            "Name nodes that work with --good, lower --fewest, or check the command itself.",
        ]
    return ["All of them together work: nothing is wrong with one of them, now."]


def _boundary(given: argparse.Namespace, found: Boundary, state: BisectState) -> list[str]:
    if found.works is None or found.fails is None:
        end = found.fails if found.works is None else found.works
        does = "fails already" if found.works is None else "works"
        return [f"{given.kind} {end} {does}: nothing to bisect. Give another --{found.wrong}."]
    word = "largest" if found.works < found.fails else "smallest"
    other = "smallest" if word == "largest" else "largest"
    runs = humanize.plural(len(state.trials), "run")
    noun = "batch" if given.kind == "batch" else f"number of {given.kind}"
    first = f"{word} {noun} that works: {found.works}; {other} that fails: {found.fails} ({runs})"
    return [first, *changes(given.kind, found.works, found.fails, given.ranks_per_node)]
