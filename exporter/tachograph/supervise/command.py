"""`tachograph supervise -- command`: starts a training and restarts it by policy; `history` and `confirm` beside it."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

from tachograph.client.core.arguments import name as valid_name
from tachograph.client.hello.identity import discover
from tachograph.command_line import CommandParser
from tachograph.files import atomic_file
from tachograph.processes.process_tree import adopt_orphans
from tachograph.servers.http_client import without_password
from tachograph.servers.server_address import exporter_url, web_socket_path
from tachograph.supervise import evidence, history, journal, slurm
from tachograph.supervise import policy as policies
from tachograph.supervise.alert_source import AlertSource, AlertSourceError, add_options, alert_source
from tachograph.supervise.findings import FindingSource
from tachograph.supervise.heartbeat import Heartbeat
from tachograph.supervise.journal import DECISION, ENDED, INTENT, OUTCOME, SUPERVISOR, Entry, Journal, JournalTakenError
from tachograph.supervise.launcher import ChildCommand, Launcher, nodes_needed, restarter
from tachograph.supervise.ledger import MODES, SHADOW
from tachograph.supervise.memory import remember
from tachograph.supervise.observer import RunWatch
from tachograph.supervise.permission import CONFIRMATIONS
from tachograph.supervise.policy import Policy
from tachograph.supervise.several_nodes import SeveralNodes, sources_of
from tachograph.supervise.signals import Signals
from tachograph.supervise.slurm_job import SlurmJob, is_srun, job_nodes
from tachograph.supervise.supervisor import Supervisor
from tachograph.supervise.totals import ASKED
from tachograph.supervise.training import AttemptProcesses
from tachograph.supervise.triggers import TRIGGERS
from tachograph.text.humanize import listed
from tachograph.text.printable import printable
from tachograph.text.redact import redact
from tachograph.text.wrapping import fitted
from tachograph.watch.program import end_as
from tachograph.wire import socket_path

FOLDER = "tachograph-supervise"
NODE = "{node}"
"""Stands for the name of each node in --exporter."""
EPILOG = """\
The command runs as a child and gets every signal; any exit status but these is
its own. In shadow mode nothing is done; the journal has what would be.

  tachograph supervise history [RUN]  shows the journal of a run
  tachograph supervise confirm ID     has a decision of ask mode carried out

examples:
  tachograph supervise --run llama-7b -- torchrun --nproc-per-node 8 train.py
  tachograph supervise --run llama-7b --mode act --evidence /shared/evidence \\
      -- torchrun --nproc-per-node 8 train.py
  tachograph supervise --show-policy > policy.yml

exit status:
  0    the command has finished; or the policy was shown
  1    the journal or --webhook's port cannot be opened, or is another run's
  2    wrong arguments, or a policy with faults, each of which is named
  3    the policy has stopped the training
  4    another supervisor has this run
  127  the command cannot be run
"""
HISTORY_EPILOG = """\
exit status:
  0  shown
  1  there is no journal
  2  wrong arguments
"""
CONFIRM_EPILOG = """\
exit status:
  0  confirmed
  1  there is no such question, it is answered already, or is another user's
  2  wrong arguments
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    words = list(arguments)
    try:
        if words[:1] == ["history"]:
            return _history(words[1:])
        if words[:1] == ["confirm"]:
            return _confirm(words[1:])
        return _supervise(words)
    except SystemExit as end:
        return int(end.code or 0)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph supervise",
        usage="tachograph supervise [options] -- command\n       tachograph supervise {history,confirm} ...",
        description="Start a training on this node, and restart it by policy when the exporter\n"
        "concludes that a rank died, failed or froze, that the run hangs, or that its\n"
        "loss is not finite or has spiked for good.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", type=_run_name, help="the run, as its alerts name it (default: as a rank would)")
    parser.add_argument(
        "--mode", choices=MODES, default=SHADOW, help="do nothing, ask a person, or act (default: %(default)s)"
    )
    parser.add_argument("--policy", type=Path, metavar="FILE", help="what to do, in YAML (default: see --show-policy)")
    parser.add_argument("--show-policy", action="store_true", help="print the policy, once it is checked, and exit")
    parser.add_argument(
        "--evidence", type=Path, metavar="FOLDER", help="where evidence is kept (default: evidence, in --state)"
    )
    parser.add_argument(
        "--logs", type=Path, action="append", default=[], metavar="PATH",
        help="a log or a folder of logs, whose ends are evidence (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--state", type=Path, metavar="FOLDER", help=f"folder of the journal and the plans (default: {FOLDER}/RUN)"
    )
    parser.add_argument(
        "--exporter", metavar="NODE|URL",
        help="the exporter (default: the one of the ranks' socket; {node} in it is each node of a Slurm job)",
    )  # fmt: skip
    parser.add_argument(
        "--spares", type=_count, default=0, metavar="N",
        help="nodes of a Slurm job that wait to take another's place (default: %(default)s)",
    )  # fmt: skip
    add_options(parser)
    return parser


def _supervise(words: Sequence[str]) -> int:
    place = words.index("--") if "--" in words else len(words)
    command = list(words[place + 1 :])
    parser = _parser()
    given = parser.parse_args(words[:place])
    path = given.policy or policies.DEFAULT
    try:
        policy = policies.read(path)
    except policies.PolicyError as error:
        for fault in error.faults:
            _say(fault)
        return 2
    if given.show_policy:
        print(path.read_text(encoding="utf-8"), end="")
        return 0
    if not command:
        parser.error("expected -- and the command to run")
    nodes = job_nodes() if is_srun(command) else ()
    if not is_srun(command) and (needed := nodes_needed(command, os.environ)) > 1:
        parser.error(
            f"the command is one of {needed} nodes' (--nnodes, --num_machines or PET_NNODES): a run on several is "
            "supervised only with srun in a Slurm job. A supervisor on each would know and restart only a part of it"
        )
    if given.spares and len(nodes) <= given.spares:
        parser.error(f"--spares {given.spares}: the command must be srun, in a Slurm job of more nodes than that")
    try:
        addresses = _addresses(given.exporter, nodes)
    except ValueError as error:
        parser.error(f"--exporter {given.exporter}: {error}")
    run = given.run or discover({}, os.environ).run
    try:
        source = alert_source(given, names_of(run), _say)
    except AlertSourceError as error:
        parser.error(str(error))
    return _run(run, given, policy, addresses, command, alerts=source)


def _run(
    run: str,
    given: argparse.Namespace,
    policy: Policy,
    addresses: Mapping[str, str],
    command: Sequence[str],
    *,
    alerts: AlertSource,
) -> int:
    """Supervise the command, and return its status or end by its signal."""
    folder = given.state or state_folder(run)
    _have_standard_streams()
    try:
        book = Journal(folder)
    except JournalTakenError as error:
        _say(f"{error}; another run needs another name (--run) or another folder (--state)")
        return 4
    except OSError as error:
        _say(f"the journal cannot be opened: {folder}: {error.strerror or error}; --state names another folder")
        return 1
    other = next((one["run"] for one in reversed(book.entries) if one["kind"] == SUPERVISOR and one["run"] != run), "")
    if other:  # its budget and its checkpoints are not this run's
        book.close()
        _say(f"{book.path} is the journal of run {other}: give run {run} a folder of its own with --state")
        return 1
    if is_srun(command) and (why := _taken_elsewhere(book)):
        book.close()
        _say(why)
        return 4
    kept = given.evidence or folder / "evidence"
    launcher, source = _launched(given, command, book, addresses, names_of(run))
    adopt_orphans()
    alone = [trigger for trigger in TRIGGERS if trigger not in policy.rules]
    _say(
        f"run {run}, {given.mode} mode; findings from {listed(list(map(without_password, addresses.values())), 2)}; "
        f"journal {book.path}" + (f"; not in the policy, and left alone: {', '.join(alone)}" if alone else "")
    )
    try:
        with ExitStack() as stack:
            try:
                url = stack.enter_context(alerts.server)
            except OSError as error:
                _say(f"--webhook {given.webhook}: {error.strerror or error}")
                return 1
            if url:
                _say(f"Alertmanager may send its webhooks to {url}")
            heartbeat, signals = stack.enter_context(Heartbeat(socket_path(), run)), stack.enter_context(Signals())
            status = Supervisor(
                run, policy, given.mode, book, source,
                launcher=launcher,
                keep=lambda number, seen: evidence.keep(addresses, seen, kept / number, given.logs),
                say=_say, signals=signals, silenced=alerts.silenced, alerts=alerts.alerts,
                tell=lambda facts: heartbeat.tell(lambda: {**facts(), "webhooks": alerts.webhooks()}),
            ).supervise(redact(shlex.join(command)))  # fmt: skip
    finally:
        book.close()
    return end_as(status)


def _taken_elsewhere(book: Journal) -> str:
    """Return which other job has an attempt of this run under way, empty if none: not all file systems' locks tell."""
    owner = next((one for one in reversed(book.entries) if one["kind"] == SUPERVISOR), {})
    number = owner.get("job", "")
    if not number or number == os.environ["SLURM_JOB_ID"] or not remember(book.entries).runs:
        return ""
    try:
        return "" if slurm.is_over(number) else f"job {number} already supervises this run, by {book.path}"
    except slurm.SlurmError as error:
        return f"whether job {number} still supervises this run, Slurm does not say: {error}"


def _launched(
    given: argparse.Namespace, command: Sequence[str], book: Journal, addresses: Mapping[str, str], names: Sequence[str]
) -> tuple[Launcher, RunWatch]:
    """Return what starts the command, and where its findings come from."""
    if not is_srun(command):
        (address,) = addresses.values()
        start = lambda environment: AttemptProcesses(command, environment, book.descriptor)  # noqa: E731
        return ChildCommand(start, restarter(command, os.environ)), FindingSource(address, names)
    job = SlurmJob(os.environ["SLURM_JOB_ID"], tuple(addresses), command, book.descriptor, given.spares)
    return job, SeveralNodes(sources_of(addresses, names), lambda: job.used)


def state_folder(run: str) -> Path:
    """Return the usual folder of a run's journal, below the working directory."""
    return Path(FOLDER) / quote(run, safe="").replace(".", "%2E")


def names_of(run: str) -> list[str]:
    """Return the names under which an exporter may show a run of this user, the surest last: qualified by its owner."""
    owners = [f"uid:{os.getuid()}"]
    with suppress(KeyError):  # a container's uid without an entry
        owners.append(pwd.getpwuid(os.getuid()).pw_name)
    return [run, *(f"{owner}/{run}" for owner in owners)]


def _addresses(given: str | None, nodes: Sequence[str]) -> dict[str, str]:
    """Return the address of each node's exporter; of this one alone, which has no name, without others.

    Raise ValueError.
    """
    if not nodes:
        return {"": _address(given)}
    if given is not None and NODE not in given and len(nodes) > 1:
        raise ValueError(f"the job has {len(nodes)} nodes: write {NODE} where the name of each belongs")
    if given is not None:
        return {node: _address(given.replace(NODE, node)) for node in nodes}
    own = os.environ.get("SLURMD_NODENAME", "")
    return {node: _address(None if node == own else node) for node in nodes}


def _address(given: str | None) -> str:
    """Return the address of an exporter: the pages beside the ranks' socket, else this node's usual port."""
    own = web_socket_path(socket_path())
    text = given or (f"unix:{own}" if Path(own).exists() else "localhost")
    return exporter_url(text).removesuffix("/metrics")


def _run_name(text: str) -> str:
    if (found := valid_name(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r:.40} cannot name a run: 1 to 128 printable characters")
    return found


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number of nodes")
    return int(text)


def _have_standard_streams() -> None:
    """Open what of 0, 1 and 2 is closed: a file of ours with such a number would get what the training prints."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


def _say(text: str) -> None:
    with suppress(OSError, AttributeError):  # a full disk, a lost terminal, no standard error: no end of a training
        sys.stderr.write(f"{printable(f'tachograph supervise: {text}')}\n")
        sys.stderr.flush()


def _journal_parser(name: str, description: str, epilog: str) -> CommandParser:
    parser = CommandParser(
        prog=f"tachograph supervise {name}", description=description, epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--state", type=Path, metavar="FOLDER", help=f"of the journal (default: {FOLDER}/RUN)")
    return parser


def _journal_of(given: argparse.Namespace) -> Path:
    """Return the journal that is meant: of --state, of the run, or the only one below the working directory."""
    if given.state is not None:
        return Path(given.state) / journal.NAME
    if given.run is not None:
        return state_folder(given.run) / journal.NAME
    found = sorted(Path(FOLDER).glob(f"*/{journal.NAME}"))
    return found[0] if len(found) == 1 else Path(FOLDER) / "RUN" / journal.NAME


def _history(words: Sequence[str]) -> int:
    parser = _journal_parser(
        "history", "Show what was found of a run, what was decided, and what came of it.", HISTORY_EPILOG
    )
    parser.add_argument("run", metavar="RUN", nargs="?", help="the run (default: the only one that has a journal here)")
    given = parser.parse_args(words)
    path = _journal_of(given)
    try:
        entries = journal.read(path)
    except OSError as error:
        _say(f"no journal: {path}: {error.strerror or error}; --state names its folder")
        return 1
    print(fitted(*history.lines(entries, time.time()), hang=34))  # where the texts begin
    return 0


def _confirm(words: Sequence[str]) -> int:
    parser = _journal_parser("confirm", "Let a decision that waits in ask mode be carried out.", CONFIRM_EPILOG)
    parser.add_argument("id", metavar="ID", help="the decision, as it was asked")
    parser.add_argument("run", metavar="RUN", nargs="?", help="the run (default: the only one that has a journal here)")
    given = parser.parse_args(words)
    path = _journal_of(given)
    try:
        if os.geteuid() not in journal.owners(path):
            _say(f"not confirmed: {path} belongs to another user, who alone may confirm, with root")
            return 1
        entries = journal.read(path)
        question = open_question(entries, given.id)
        if question is None:
            _say(f"no question {given.id} waits in {path}: it is answered, withdrawn, or of another run")
            return 1
        owner = next((one for one in reversed(entries) if one["kind"] == SUPERVISOR), None)
        if owner is not None and not journal.is_alive(owner):
            _say(
                f"not confirmed: the supervisor that asked, process {owner['pid']}, has ended, and the training with "
                "it. Start it again: what is still wrong then is asked again"
            )
            return 1
        folder = path.parent / CONFIRMATIONS
        folder.mkdir(mode=0o700, exist_ok=True)
        said = {"by": os.getuid(), "time": time.time()}
        atomic_file.replace(folder / given.id, json.dumps(said).encode() + b"\n", 0o600)
    except OSError as error:
        _say(f"not confirmed: {path}: {error.strerror or error}; --state names the folder of the journal")
        return 1
    print(fitted(f"confirmed: {question['action']}, {question['why']}. {question['text']}"))
    return 0


def open_question(entries: Sequence[Entry], number: str) -> Entry | None:
    """Return the question of this id, None if there is none, or it no longer waits: its attempt is over."""
    if not re.fullmatch(r"[0-9a-f]{6}", number):
        return None
    found = None
    for entry in entries:
        kind = entry["kind"]
        if kind == DECISION and entry["id"] == number and entry["outcome"] == ASKED:
            found = entry
        elif kind in (ENDED, SUPERVISOR) or (kind in (INTENT, OUTCOME) and entry["id"] == number):
            found = None
    return found
