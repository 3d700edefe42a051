"""`tachograph blackbox capture RUN`: has every exporter of a run ask its ranks, and waits until they have answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tachograph.blackbox.served import ServedRun
from tachograph.collect import exporters
from tachograph.collect.exporters import ExporterError

POLL_SECONDS = 0.5
RAS_SECONDS = 18.0
"""How long NCCL's service may take, which an exporter gives 15 s."""

BEING_ASKED = "being asked"
MOST_RAS = 3
"""Exporters whose node is asked for NCCL's account, one after the other, until one has it: each knows the whole job."""


@dataclass
class Answer:
    """The result of asking one exporter: how many ranks were asked, which boxes came since, and what failed."""

    exporter: str
    node: str = ""
    asked: int = 0
    since: float = 0.0
    came: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    """Connected ranks whose box has not come."""

    failed: str = ""

    @property
    def is_whole(self) -> bool:
        """Return whether every rank that was asked has answered."""
        return not self.failed and len(self.came) >= self.asked


@dataclass
class Captured:
    """The result: an answer of each exporter, and what became of asking NCCL's RAS service."""

    answers: list[Answer]
    without: list[str]
    ras: str = ""


def capture(
    addresses: Sequence[str],
    run: str,
    seconds: float,
    *,
    ras: bool = True,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Captured:
    """Ask all, wait `seconds` at most until each box is newer than the request, then ask NCCL; nothing is raised."""
    deadline = clock() + seconds
    answers, without = _request(addresses, run)
    while open_ones := [one for one in answers.values() if not one.is_whole and not one.failed]:
        found = exporters.side_by_side([one.exporter for one in open_ones], lambda one: exporters.index(one, run))
        for address, index in found.items():
            _look(answers[address], index)
        if clock() >= deadline or all(one.is_whole or one.failed for one in open_ones):
            break
        sleep(POLL_SECONDS)
    whole = Captured(list(answers.values()), without)
    if ras:
        whole.ras = _ask_ras([one.exporter for one in whole.answers if one.asked], run, sleep, clock)
    return whole


def _request(addresses: Sequence[str], run: str) -> tuple[dict[str, Answer], list[str]]:
    asked = exporters.side_by_side(addresses, lambda one: exporters.capture(one, run, ras=False))
    without = [one for one, said in asked.items() if isinstance(said, exporters.UnknownThereError)]
    answers = {}
    for exporter, said in asked.items():
        if isinstance(said, ExporterError):
            answers[exporter] = Answer(exporter, failed=str(said))
        else:
            answers[exporter] = Answer(exporter, asked=said[0], since=said[1])
    return {one: answer for one, answer in answers.items() if one not in without}, without


def _look(answer: Answer, index: ServedRun | ExporterError) -> None:
    if isinstance(index, ExporterError):
        return  # it may answer the next time
    came = {box.rank for box in index.boxes if box.time >= answer.since}
    connected = {rank.rank for rank in index.ranks if rank.state in ("running", "frozen")}
    answer.node, answer.came = index.node, tuple(sorted(came))
    answer.missing = tuple(sorted(connected - came))


def _ask_ras(addresses: Sequence[str], run: str, sleep: Callable[[float], None], clock: Callable[[], float]) -> str:
    """Return what NCCL's RAS service said, or why it did not, on the first node that has it."""
    said = "not asked: no rank was"
    for exporter in addresses[:MOST_RAS]:
        deadline = clock() + RAS_SECONDS
        try:
            exporters.capture(exporter, run, ras=True)
            while True:
                index = exporters.index(exporter, run)
                if index.ras:
                    return f"{index.node}: {index.ras_said}"
                if index.ras_said != BEING_ASKED or clock() >= deadline:
                    said = f"{index.node}: {index.ras_said}"
                    break
                sleep(POLL_SECONDS)
        except ExporterError as error:
            said = f"{exporters.shown(exporter)}: {error}"
    return said


def as_json(run: str, found: Captured) -> Mapping[str, object]:
    """Return the result for --json."""
    return {
        "run": run,
        "exporters": [
            {
                "exporter": exporters.shown(one.exporter), "node": one.node, "asked": one.asked, "came": one.came,
                "missing": one.missing, "error": one.failed or None,
            }
            for one in found.answers
        ],
        "without": [exporters.shown(one) for one in found.without],
        "ras": found.ras,
    }  # fmt: skip
