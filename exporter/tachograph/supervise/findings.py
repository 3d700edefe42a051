"""The findings of the exporter about one run, as it concluded them: read from `/api/node`, and never judged again."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from tachograph.files.unreadable import UNREADABLE
from tachograph.servers.http_client import HttpError, HttpResponse, KeptPage, without_password
from tachograph.supervise.journal import MOST_WHOLE
from tachograph.supervise.run_seen import (
    WITHHELD,
    CheckpointSeen,
    NodeProblem,
    NotThere,
    RankSeen,
    RunSeen,
    Unknown,
    is_path,
    whole,
)
from tachograph.text.humanize import listed
from tachograph.text.printable import printable
from tachograph.wire import decode_number

VERSION = 1
"""Of the answer that is understood (docs/schemas/api-node.json)."""

PATH = "/api/node"
MOST_BYTES = 16 << 20
ASK_SECONDS, LOOK_SECONDS = 3.0, 10.0
"""For each part of an answer, and for all of it: one that came byte by byte would keep signals waiting."""


class AskingThreads:
    """Threads that ask exporters beside the supervisor's loop.

    They stay: another one for each question would cost as much as the question.
    """

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._questions: SimpleQueue[tuple[KeptPage, Future[HttpResponse]]] = SimpleQueue()
        self._are_there = False

    def ask(self, page: KeptPage) -> Future[HttpResponse]:
        """Return what will hold the answer, or what went wrong; no page may be asked twice at the same time."""
        answered: Future[HttpResponse] = Future()
        self._questions.put((page, answered))
        if not self._are_there:
            self._are_there = True
            for _ in range(self._count):
                threading.Thread(target=self._answer, daemon=True).start()
        return answered

    def _answer(self) -> None:
        while True:
            page, answered = self._questions.get()
            try:
                answered.set_result(page.ask(ASK_SECONDS, most=MOST_BYTES))
            except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
                answered.set_exception(error)


class FindingSource:
    """The exporter at an address, asked for one run under the last of these names by which it shows one.

    Ranks of earlier attempts are shown until their next process says hello: `begin` notes them, and they are left out.
    """

    def __init__(
        self, address: str, names: Iterable[str], node: str = "", *, by: AskingThreads | None = None, job: str = "",
        earlier_jobs: Collection[str] = (),
    ) -> None:  # fmt: skip
        """With the `job` that its ranks say they are in the run may have any owner; `earlier_jobs` are left out."""
        self._job, self._earlier_jobs = job, frozenset(earlier_jobs)
        self._names, self._shown = tuple(names), without_password(address)
        self._node = node
        self._earlier: dict[int, RankSeen] = {}
        self._page, self._threads = KeptPage(address + PATH), by or AskingThreads()
        self._asked: Future[HttpResponse] | None = None
        self._answered: Future[HttpResponse] = Future()
        self._until = 0.0

    def begin(self) -> None:
        """Take all ranks that are shown now for those of earlier attempts; call it before an attempt is started."""
        self.ask()
        self.note_earlier()

    def look(self, attempt_seconds: float, *, in_turns: bool = False) -> RunSeen | Unknown:
        """Return what is known of the run; ranks that ended before this attempt, so many seconds ago, are left out.

        There is no other node to take turns with.
        """
        self.ask()
        return whole(self.part(attempt_seconds))

    def ask(self) -> None:
        """Ask the exporter, unless the last question is still open; what it answers is taken by one of the others."""
        self._until = time.monotonic() + LOOK_SECONDS
        if self._asked is not None and not self._asked.done():
            self._answered = Future()
            self._answered.set_exception(HttpError("the last question is still open"))
            return
        self._answered = self._asked = self._threads.ask(self._page)

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
            if rank.rank not in self._earlier
            and rank.job_id not in self._earlier_jobs
            and (rank.ended_seconds is None or rank.ended_seconds < attempt_seconds)
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
            found = _names_in(said, self._names[0], self._job) if self._job else []
            if len(found) > 1:  # any user may say any name, and any job
                return Unknown(
                    f"the exporter at {self._shown} shows {listed(found)}, and which of these is the run is not known"
                )
            return _run(said, found or self._names, self._node)
        except UNREADABLE as error:
            return Unknown(f"what {self._shown} answers is not a node's findings: {printable(repr(error))[:160]}")


def _follows(rank: RankSeen, earlier: RankSeen) -> bool:
    """Return whether a rank is a later process than that one; an exporter that was restarted may count from 0 again."""
    return rank.restarts > earlier.restarts or (bool(rank.pid and earlier.pid) and rank.pid != earlier.pid)


def _names_in(said: Mapping[str, Any], name: str, job: str) -> list[str]:
    """Return under which names, of any owner, a run is shown with a rank in this job; raise one of UNREADABLE."""
    return [
        _text(run["run"])
        for run in said["runs"]
        if f"/{run['run']}".endswith(f"/{name}") and any(rank.get("job_id") == job for rank in run["ranks"])
    ]


def _run(said: Mapping[str, Any], names: Sequence[str], node: str) -> RunSeen | Unknown:
    """Return the run in an answer; raise one of UNREADABLE for an answer of another form."""
    shown = {one["run"]: one for one in said["runs"]}
    run = next((shown[name] for name in reversed(names) if name in shown), None)
    if run is None:
        return NotThere(f"no rank of run {names[0]} has reported to the exporter")
    broken = {gpu["uuid"] for gpu in said["gpus"] if gpu.get("broken")}
    ranks = [_rank(rank, node, broken) for rank in run["ranks"]]
    uuids = {rank.uuid for rank in ranks if rank.uuid}
    of_node = f" of {node}" if node else ""
    return RunSeen(
        name=_text(run["run"]),
        times={node: float(said["time"])},
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
            for text in gpu.get("broken", ())
        ),
        node=_text(said["node"]),
        spiked_step=_whole(run.get("spiked_step")),
        hang_limit_of=_text(run.get("hang_limit_of", "")),
    )


def _checkpoint(said: Mapping[str, Any]) -> CheckpointSeen:
    path = _text(said["path"])
    return CheckpointSeen(
        step=_number(said["step"]),
        time=decode_number(said["time"]),
        path="" if path.startswith(WITHHELD) or not is_path(path) else path,
        is_durable=said["durable"] is True,
        is_suspect=said["suspect"] is True,
    )


def _rank(said: Mapping[str, Any], node: str, broken: Collection[str]) -> RankSeen:
    """Return a rank of a node, which has these broken GPUs."""
    return RankSeen(
        rank=_number(said["rank"]),
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
        own_pid=_text(said.get("own_pid", "")),
        process_started=_text(said.get("process_started", "")),
        node=node,
        has_gpu_trouble=said["uuid"] in broken,
    )


def _text(value: object) -> str:
    """Return a text; raise TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a text")
    return value


def _whole(value: object) -> int | None:
    """Return a whole number, None where none is known; raise one of UNREADABLE."""
    return None if _known(value) is None else _number(value)


def _number(value: object) -> int:
    """Return a whole number that the journal takes: beyond it an entry is none. Raise one of UNREADABLE."""
    number = int(decode_number(value))
    if abs(number) > MOST_WHOLE:
        raise ValueError(f"{number:.3g} is too large for a step or a rank")
    return number


def _known(value: object) -> float | None:
    number = None if value is None else decode_number(value)
    return None if number is None or math.isnan(number) else number
