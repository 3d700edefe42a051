"""The loss and the step time of each run over the time that it is watched, and the page that shows them at the end."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tachograph.report.figure import Figure, Line, chart
from tachograph.report.markup import safe
from tachograph.report.page import document
from tachograph.report.window import POINTS, Window
from tachograph.text.humanize import duration, percent, significant
from tachograph.top.overview import RunSummary

MOST = 2 * POINTS
"""Of a run's samples: every second one is dropped when there are more."""
LATE = 3
"""So many intervals without an answer are a gap."""


class Said(NamedTuple):
    """The figures of a run at a Unix time; None is what it did not say."""

    at: float
    loss: float | None
    step_seconds: float | None
    data_share: float | None


class Curves:
    """The figures of each run, at even distances from the first answer to the last, however long it is watched."""

    def __init__(self) -> None:
        self._samples: dict[str, list[Said]] = defaultdict(list)
        self._every: dict[str, int] = defaultdict(lambda: 1)
        self._answers: dict[str, int] = defaultdict(int)

    def add(self, at: float, runs: Iterable[RunSummary]) -> None:
        """Take over what was said at a Unix time."""
        for run in runs:
            self._answers[run.name] += 1
            if self._answers[run.name] % self._every[run.name]:
                continue
            kept = self._samples[run.name]
            loss = math.nan if run.nonfinite_ranks else run.loss
            kept.append(Said(at, loss, run.step_seconds, _data_share(run)))
            if len(kept) > MOST:
                del kept[::2]
                self._every[run.name] *= 2

    def page(self, wrong: Sequence[str], measured: str, made: float, seconds: float) -> str:
        """Return the page, given what is wrong, the figures in words, and how many seconds apart the answers were."""
        times = [said.at for samples in self._samples.values() for said in samples]
        start, end = min(times, default=made - 1), max(times, default=made)
        runs = sorted(self._samples)
        figures = [
            figure
            for run in runs
            for figure in _figures(
                run if len(runs) > 1 else "",
                self._samples[run],
                Window(start, max(end, start + 1), math.ceil(LATE * seconds * self._every[run])),
            )
        ]
        items = "".join(f"<li>{safe(line)}</li>" for line in wrong)
        return document(
            ", ".join(runs) or "no run",
            Window(start, max(end, start + 1), 1),
            headline=safe(wrong[0]) if wrong else "Nothing was wrong at the end.",
            look="paged" if wrong else "calm",
            found="Problems",
            alerts=f"<ul>{items}</ul>" if items else '<p class="none">None.</p>',
            summary=f"<pre>{safe_lines(measured)}</pre>",
            figures=figures,
            made=made,
            source="the exporter that tachograph run --watch started",
            note="It is gone with the program: a longer past needs a Prometheus.",
        )


def safe_lines(words: str) -> str:
    """Return a text of several lines as markup."""
    return "\n".join(map(safe, words.splitlines()))


def _figures(run: str, samples: Sequence[Said], window: Window) -> Iterator[Figure]:
    of_run = f" of {run}" if run else ""
    for title, reading, style, values, form in (
        (
            f"Loss{of_run}",
            "Median over ranks, about once a second. It should fall; a cross is a loss that is NaN or infinite.",
            "median loss",
            [(said.at, said.loss) for said in samples],
            significant,
        ),
        (
            f"Step time{of_run}",
            "The usual time of the latest steps. Flat is good.",
            "usual step",
            [(said.at, said.step_seconds) for said in samples],
            duration,
        ),
        (
            f"Waits for data{of_run}",
            "Share of the usual step in which a rank waits for data. Near 0 is good.",
            "waits for data",
            [(said.at, said.data_share) for said in samples],
            percent,
        ),
    ):
        points = [(at, value) for at, value in values if value is not None]
        figure = Figure(title, reading, nothing="No answer of the exporter had one.")
        figure.picture = chart(window, title, [Line(style, "s0", points)], form, zero=not title.startswith("Loss"))
        figure.legend = [("s0", style)] if points else []
        yield figure


def _data_share(run: RunSummary) -> float | None:
    if run.data_seconds is None or not run.step_seconds:
        return None
    return min(run.data_seconds / run.step_seconds, 1.0)
