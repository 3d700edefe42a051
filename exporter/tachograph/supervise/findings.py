"""The findings of the exporter about one run, as it concluded them: read from `/api/node`, and never judged again."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tachograph.catalog.rank import ALIVE
from tachograph.catalog.run import TOLD_REASONS
from tachograph.findings.kinds import (
    GPU_XID_FATAL,
    LOSS_NOT_FINITE,
    ORDER,
    RANK_DEAD,
    RANK_FAILED,
    RANK_FROZEN,
    RUN_HUNG,
    SPIKE_STAYS,
    kind_of,
)
from tachograph.http_client import HttpError, HttpResponse, ask, without_password
from tachograph.humanize import listed
from tachograph.printable import printable
from tachograph.unreadable import UNREADABLE
from tachograph.wire import decode_number

VERSION = 1
"""Of the answer that is understood (docs/schemas/api-node.json)."""

PATH = "/api/node"
MOST_BYTES = 16 << 20
ASK_SECONDS, LOOK_SECONDS = 3.0, 10.0
"""For each part of an answer, and for all of it: one that came byte by byte would keep signals waiting."""
WITHHELD = "(shown to the run's owner"
"""How a message begins that this reader may not see, the same for all of them."""

GPU_FAULT, DEAD, FAILED, FROZEN, HUNG, NOT_FINITE, SPIKE, EXITED = (
    "gpu_fault", "dead", "failed", "frozen", "hung", "loss_not_finite", "loss_spike", "exited",
)  # fmt: skip
LEARNING = (NOT_FINITE, SPIKE)
"""Triggers whose step is the first at which the loss was in trouble: what was saved by then is in trouble, too."""


@dataclass(frozen=True)
class RankSeen:
    """A rank as the exporter shows it; `ended_seconds` is None while its process runs.

    `node` is the one whose exporter shows it, empty in a run of one node.
    """

    rank: int
    restarts: int
    state: str
    ended_seconds: float | None
    end_reason: str
    message: str
    step: int | None
    phase: str
    phase_seconds: float
    pid: str
    where: str
    process: str
    uuid: str
    is_lost: bool
    nonfinite_step: int | None
    steps: int | None = None
    """Those that its process has completed."""
    job_id: str = ""
    node: str = ""
    has_gpu_trouble: bool = False


class NodeProblem(NamedTuple):
    """Something that is wrong, in words, what usually helps, and the node that says so."""

    text: str
    remedy: str
    node: str = ""


@dataclass(frozen=True)
class CheckpointSeen:
    """A checkpoint: its step, when it was saved by the day's clock, and where, as far as that is known.

    Durable once all ranks have saved it; suspect if the loss was in trouble by then.
    """

    step: int
    time: float
    path: str
    is_durable: bool = True
    is_suspect: bool = False


@dataclass(frozen=True)
class RunSeen:
    """A run, or its part on one node; `gpu_trouble` is in words, `times` are those at which its nodes answered.

    `checkpoints` are its last ones, the newest last; `spiked_step` is that at which the loss began to spike, once that
    does not recover.
    """

    name: str
    times: tuple[float, ...]
    state: str
    world_size: int
    seconds_without_step: float | None
    hang_limit: float
    saving_seconds: float | None
    culprit: int | None
    checkpoints: tuple[CheckpointSeen, ...]
    ranks: tuple[RankSeen, ...]
    problems: tuple[NodeProblem, ...]
    gpu_trouble: tuple[str, ...]
    node: str = ""
    spiked_step: int | None = None

    @property
    def step(self) -> int | None:
        """The furthest step of its ranks."""
        return max((rank.step for rank in self.ranks if rank.step is not None), default=None)

    @property
    def is_alive(self) -> bool:
        """Whether a rank's process is there."""
        return any(rank.state in ALIVE for rank in self.ranks)

    def follows(self, before: RunSeen) -> bool:
        """Return whether each node has concluded anew since another look at the same nodes."""
        return all(now != then for now, then in zip(self.times, before.times, strict=False))


@dataclass(frozen=True)
class Unknown:
    """Nothing is known of the run now, and why: no reason to do anything."""

    why: str


class NotThere(Unknown):
    """The exporter answers, and has no rank of the run."""


class Silent(Unknown):
    """A node of the run does not answer: it may be lost as a whole, which a scheduler knows some minutes later."""


class FindingSource:
    """The exporter at an address, asked for one run under the last of these names by which it shows one.

    Ranks of earlier attempts are shown until their next process says hello: `begin` notes them, and they are left out.
    """

    def __init__(self, address: str, names: Iterable[str], node: str = "") -> None:
        self._address, self._names, self._shown = address, tuple(names), without_password(address)
        self._node = node
        self._earlier: dict[int, RankSeen] = {}
        self._question: threading.Thread | None = None
        self._answered: Future[HttpResponse] = Future()
        self._until = 0.0

    def begin(self) -> None:
        """Take all ranks that are shown now for those of earlier attempts; call it before an attempt is started."""
        self.ask()
        self.note_earlier()

    def look(self, attempt_seconds: float) -> RunSeen | Unknown:
        """Return what is known of the run; ranks that ended before this attempt, so many seconds ago, are left out."""
        self.ask()
        return whole(self.part(attempt_seconds))

    def ask(self) -> None:
        """Ask the exporter, unless the last question is still open; what it answers is taken by one of the others."""
        self._answered, self._until = Future(), time.monotonic() + LOOK_SECONDS
        if self._question is not None and self._question.is_alive():
            self._answered.set_exception(HttpError("the last question is still open"))
            return
        given = (self._address + PATH, self._answered)
        self._question = threading.Thread(target=_ask_for, args=given, daemon=True)
        self._question.start()

    def note_earlier(self) -> None:
        """Take all ranks that are in the answer for those of earlier attempts."""
        shown = self._shown_run()
        self._earlier = {} if isinstance(shown, Unknown) else {rank.rank: rank for rank in shown.ranks}

    def part(self, attempt_seconds: float) -> RunSeen | Unknown:
        """Return the answer without ranks of earlier attempts: there may be none left."""
        shown = self._shown_run()
        if isinstance(shown, Unknown):
            return shown
        for rank in shown.ranks:
            if rank.rank in self._earlier and _follows(rank, self._earlier[rank.rank]):
                del self._earlier[rank.rank]
        ranks = tuple(
            rank
            for rank in shown.ranks
            if rank.rank not in self._earlier and (rank.ended_seconds is None or rank.ended_seconds < attempt_seconds)
        )
        return replace(shown, ranks=ranks)

    def answer(self) -> HttpResponse:
        """Return what the exporter answers to the last question, all of it in time; raise HttpError."""
        try:
            return self._answered.result(max(self._until - time.monotonic(), 0.0))
        except FutureTimeoutError as error:
            raise HttpError(f"timed out: no whole answer within {LOOK_SECONDS:g} s") from error

    def _shown_run(self) -> RunSeen | Unknown:
        """Return the run with all its ranks."""
        try:
            answer = self.answer()
        except HttpError as error:
            return Unknown(f"the exporter at {self._shown} does not answer: {error}")
        if answer.status != 200:
            return Unknown(f"the exporter at {self._shown} answers {answer.status} {answer.reason}")
        try:
            said = json.loads(answer.body)
            if said["version"] != VERSION:
                return Unknown(f"the exporter at {self._shown} speaks version {said['version']!r:.20}, not {VERSION}")
            return _run(said, self._names, self._node)
        except UNREADABLE as error:
            return Unknown(f"what {self._shown} answers is not a node's findings: {printable(repr(error))[:160]}")


def nothing_seen(name: str) -> RunSeen:
    """Return a run of which no rank was ever seen."""
    return RunSeen(
        name, (), "dead", 0, None, math.inf, None, None, (), ranks=(), problems=(), gpu_trouble=()
    )  # fmt: skip


def whole(seen: RunSeen | Unknown) -> RunSeen | Unknown:
    """Return a run all of whose ranks are known, or that some are not."""
    if isinstance(seen, Unknown):
        return Unknown(seen.why)
    if not seen.ranks:
        return Unknown(f"no rank of this attempt of run {seen.name} has reported to the exporter yet")
    if len(seen.ranks) < seen.world_size:
        return Unknown(
            f"only {len(seen.ranks)} of the {seen.world_size} ranks of run {seen.name} have reported to the exporter: "
            "the others begin, have no recorder, or are on another node"
        )
    return seen


def _ask_for(url: str, answered: Future[HttpResponse]) -> None:
    """Ask for a page, and hand over its answer or what went wrong."""
    try:
        answered.set_result(ask(url, ASK_SECONDS, most=MOST_BYTES))
    except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
        answered.set_exception(error)


def _follows(rank: RankSeen, earlier: RankSeen) -> bool:
    """Return whether a rank is a later process than that one; an exporter that was restarted may count from 0 again."""
    return rank.restarts > earlier.restarts or (bool(rank.pid and earlier.pid) and rank.pid != earlier.pid)


def _run(said: Mapping[str, Any], names: Sequence[str], node: str) -> RunSeen | Unknown:
    """Return the run in an answer; raise one of UNREADABLE for an answer of another form."""
    shown = {one["run"]: one for one in said["runs"]}
    run = next((shown[name] for name in reversed(names) if name in shown), None)
    if run is None:
        return NotThere(f"no rank of run {names[0]} has reported to the exporter")
    broken = {gpu["uuid"] for gpu in said["gpus"] if gpu["trouble"]}
    ranks = [replace(_rank(rank), node=node, has_gpu_trouble=rank["uuid"] in broken) for rank in run["ranks"]]
    uuids = {rank.uuid for rank in ranks if rank.uuid}
    of_node = f" of {node}" if node else ""
    return RunSeen(
        name=_text(run["run"]),
        times=(float(said["time"]),),
        state=_text(run["state"]),
        world_size=int(run["world_size"]),
        seconds_without_step=_known(run["seconds_without_step"]),
        hang_limit=decode_number(run["hang_limit_seconds"]),
        saving_seconds=_known(run["saving_seconds"]),
        culprit=_whole(run["culprit"]),
        checkpoints=tuple(map(_checkpoint, run.get("checkpoints", ()))),
        ranks=tuple(ranks),
        problems=tuple(
            NodeProblem(_text(one["text"]), _text(one["remedy"]), node)
            for one in said["problems"]
            if one["run"] == run["run"]
        ),
        gpu_trouble=tuple(
            f"GPU {gpu['gpu']}{of_node} {text}"
            for gpu in said["gpus"]
            if gpu["uuid"] in uuids
            for text in gpu["trouble"]
        ),
        node=_text(said["node"]),
        spiked_step=_whole(run.get("spiked_step")),
    )


def _checkpoint(said: Mapping[str, Any]) -> CheckpointSeen:
    path = _text(said["path"])
    return CheckpointSeen(
        step=int(decode_number(said["step"])),
        time=decode_number(said["time"]),
        path="" if path.startswith(WITHHELD) else path,
        is_durable=said["durable"] is True,
        is_suspect=said["suspect"] is True,
    )


def _rank(said: Mapping[str, Any]) -> RankSeen:
    return RankSeen(
        rank=int(said["rank"]),
        restarts=int(said["restarts"]),
        state=_text(said["state"]),
        ended_seconds=_known(said["ended_seconds"]),
        end_reason=_text(said["end_reason"]),
        message=_text(said["message"]),
        step=_whole(said["step"]),
        phase=_text(said["phase"]),
        phase_seconds=_known(said["phase_seconds"]) or 0.0,
        pid=_text(said["pid"]),
        where=_text(said["where"]),
        process=_text(said["process"]),
        uuid=_text(said["uuid"]),
        is_lost=said["lost"] is True,
        nonfinite_step=_whole(said["nonfinite_step"]),
        steps=_whole(said["steps"]),
        job_id=_text(said.get("job_id", "")),
    )


def _text(value: object) -> str:
    """Return a text; raise TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a text")
    return value


def _whole(value: object) -> int | None:
    """Return a whole number, None where none is known; raise one of UNREADABLE."""
    number = _known(value)
    return None if number is None else int(number)


def _known(value: object) -> float | None:
    number = None if value is None else decode_number(value)
    return None if number is None or math.isnan(number) else number


@dataclass(frozen=True)
class RunFinding:
    """A trigger that holds: which ranks, in which category, at which step and line, and in the exporter's words.

    `nodes` are those to blame: of the ranks that died, froze, hold the others up or are on a broken GPU.
    """

    trigger: str
    ranks: tuple[int, ...]
    category: str
    step: int | None
    line: str
    text: str
    remedy: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def signature(self) -> tuple[str, str, int | None]:
        """Kind, category and step, which two failures of one cause have in common."""
        return self.trigger, self.category, self.step


def _of_state(state: str) -> Callable[[RunSeen], list[RankSeen]]:
    return lambda run: [rank for rank in run.ranks if rank.state == state and rank.end_reason not in TOLD_REASONS]


def _hung(run: RunSeen) -> list[RankSeen]:
    if run.state != "hung":
        return []
    return [rank for rank in run.ranks if rank.rank == run.culprit] or [
        rank for rank in run.ranks if rank.state in ALIVE
    ]


def _on_broken_gpus(run: RunSeen) -> list[RankSeen]:
    known = [rank for rank in run.ranks if rank.has_gpu_trouble]
    return known or [rank for rank in run.ranks if rank.uuid]


TRIGGERS: Mapping[str, Callable[[RunSeen], list[RankSeen]]] = {
    GPU_FAULT: lambda run: _on_broken_gpus(run) if run.gpu_trouble else [],
    DEAD: _of_state("dead"),
    NOT_FINITE: lambda run: [rank for rank in run.ranks if rank.is_lost],
    FAILED: _of_state("failed"),
    FROZEN: _of_state("frozen"),
    HUNG: _hung,
    SPIKE: lambda run: [] if run.spiked_step is None else list(run.ranks),
    EXITED: lambda _: [],  # concluded from the command's own end
}
"""Trigger -> the ranks of which it holds. Of several that hold, the first one explains the others, as the table of
findings has it (`findings.kinds.KINDS`)."""

ALERTS: Mapping[str, str] = {
    GPU_FAULT: GPU_XID_FATAL.alert, DEAD: RANK_DEAD.alert, NOT_FINITE: LOSS_NOT_FINITE.alert,
    FAILED: RANK_FAILED.alert, FROZEN: RANK_FROZEN.alert, HUNG: RUN_HUNG.alert, SPIKE: SPIKE_STAYS.alert,
}  # fmt: skip
"""Trigger -> the alert that pages for the same finding."""


def worst(run: RunSeen) -> RunFinding | None:
    """Return the finding that explains all others, None if nothing is wrong."""
    for trigger in sorted(ALERTS, key=lambda trigger: ORDER[ALERTS[trigger]]):
        if ranks := TRIGGERS[trigger](run):
            return _finding(trigger, run, ranks)
    return None


def _finding(trigger: str, run: RunSeen, ranks: Sequence[RankSeen]) -> RunFinding:
    first = max(ranks, key=lambda rank: rank.ended_seconds or 0.0)
    step = first.step
    if trigger == NOT_FINITE:
        known = [rank.nonfinite_step for rank in ranks if rank.nonfinite_step is not None]
        step = min(known) if known else step
    elif trigger == SPIKE:
        step = run.spiked_step
    line = ""
    if trigger == FAILED and first.end_reason != "collective":  # a timeout is raised at the same line, whoever is late
        line = "" if first.message.startswith(WITHHELD) else first.message
    elif trigger in (FROZEN, HUNG) and (trigger == FROZEN or run.culprit is not None):
        line = first.where
    unsaid = NodeProblem(f"Run {run.name}: {trigger.replace('_', ' ')}.", "")
    words, remedy, _ = next((problem for problem in run.problems if problem.node == first.node), unsaid)
    if trigger == GPU_FAULT:
        words, remedy = f"Run {run.name} is on a broken GPU: {run.gpu_trouble[0]}.", kind_of(ALERTS[trigger]).runbook
    words = words if words.endswith((".", "…")) else f"{words}."
    is_of_nodes = trigger in (DEAD, FROZEN, GPU_FAULT) or (trigger == HUNG and run.culprit is not None)
    nodes = tuple(sorted({rank.node for rank in ranks if rank.node})) if is_of_nodes else ()
    return RunFinding(
        trigger,
        tuple(sorted(rank.rank for rank in ranks)),
        first.end_reason or trigger,
        step,
        line,
        f"{words} It is on {listed(nodes, 4)}." if nodes else words,
        remedy,
        nodes,
    )
