"""Evaluates the shipped rules over a recording: `promtool test rules` reports what fires at each moment, with its text.

promtool ignores a group's own `interval`: it evaluates every group at each moment, in the order of the files. Rules
that count evaluations of a slower group see more of them here than in Prometheus.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tachograph.processes.die_with_parent import dying_with_parent
from tachograph_lab.replay import input_series, promtool_limit, promtool_output
from tachograph_lab.replay.alertmanager import Firing
from tachograph_lab.replay.promtool_output import ActiveAlert, PromtoolOutput
from tachograph_lab.replay.recording import Recording
from tachograph_lab.replay.shipped_rules import ShippedRules

FASTER = {"GOGC": "400"}
"""promtool allocates much and runs briefly: fewer garbage collections, while memory lasts, save a fifth of its time."""

LEAST_ROOM, ROOM_PER_BYTE, MOST_ROOM = 6 * 2**30, 28, 0.4
"""That memory, in bytes: at least, per byte of its file, and at most, as a share of the machine's memory.

A file of 219 MB hardly fits into 3 GiB: with so little promtool takes three times the CPU that it takes with 6. Small
fleets over five hours fill as much with what the rules record.
"""

Key = tuple[tuple[str, str], ...]


class EvaluationError(Exception):
    """promtool could not evaluate the rules, or a rule failed; each line is one of its errors."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def evaluate(
    recording: Recording, rules: ShippedRules, evaluation_seconds: float = 5.0, suite: str = "bookworm"
) -> list[Firing]:
    """Return every alert that fires, from when until when, with its texts, except the watchdog.

    Raises EvaluationError where a rule fails, and BinariesUnavailable.
    """
    moments = [number * evaluation_seconds for number in range(int(recording.seconds // evaluation_seconds) + 1)]
    with tempfile.TemporaryDirectory(prefix="tachograph-replay-") as folder:
        path = Path(folder) / "test.yml"
        with path.open("w", encoding="utf-8") as file:
            questions = (
                {"eval_time": milliseconds(at), "alertname": alert} for at in moments for alert in rules.alerts
            )
            PromtoolTest(recording, rules, evaluation_seconds, "alert_rule_test", questions).write(file)
        return spans(_run(promtool_limit.raised(suite), path).alerts, moments)


def spans(shown: Iterable[ActiveAlert], moments: Sequence[float]) -> list[Firing]:
    """Return the continuous firings of alerts that were reported moment by moment, by their start."""
    at: dict[float, dict[Key, ActiveAlert]] = {moment: {} for moment in moments}
    for one in shown:
        at[one.seconds][tuple(sorted(one.labels.items()))] = one
    firings: list[Firing] = []
    running: dict[Key, ActiveAlert] = {}
    for moment in moments:
        now = at[moment]
        firings += [_firing(running.pop(key), moment) for key in [*running] if key not in now]
        for key, one in now.items():
            running.setdefault(key, one)
    firings += [_firing(one, None) for one in running.values()]
    return sorted(firings, key=lambda one: (one.start, sorted(one.labels.items())))


def _firing(first: ActiveAlert, end: float | None) -> Firing:
    return Firing(first.labels, first.seconds, end, first.annotations)


def _run(program: Path, path: Path) -> PromtoolOutput:
    """Return promtool's answers; what a rule or template cannot do is an EvaluationError."""
    command = dying_with_parent([str(program), "test", "rules", str(path)])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=roomy(path.stat().st_size)
    ) as promtool:
        assert promtool.stdout is not None
        try:
            output = promtool_output.read(promtool.stdout)
        except BaseException:  # a replay that is interrupted does not wait for promtool
            promtool.kill()
            raise
    texts = (text for one in output.alerts for text in (*one.labels.values(), *one.annotations.values()))
    broken = dict.fromkeys(text for text in texts if _BROKEN in text)
    if promtool.returncode not in (0, 1) or output.errors or broken:
        raise EvaluationError([*output.errors, *broken] or [f"promtool ended with {promtool.returncode}"])
    return output


def roomy(file_bytes: int) -> dict[str, str]:
    """Return an environment that leaves promtool memory for a test file of so many bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    room = min(max(LEAST_ROOM, ROOM_PER_BYTE * file_bytes), int(MOST_ROOM * memory))
    return {**FASTER, "GOMEMLIMIT": f"{room}B", **os.environ}


_BROKEN = "<error expanding template"


@dataclass(frozen=True)
class PromtoolTest:
    """A test of promtool's: what was scraped, the rules, how often these are evaluated, and its questions.

    `kind` is the key of its questions: `alert_rule_test` or `promql_expr_test`.
    """

    recording: Recording
    rules: ShippedRules
    evaluation_seconds: float
    kind: str
    questions: Iterable[Mapping[str, str]]

    def write(self, file: TextIO) -> None:
        """Write it: JSON, which is YAML. Questions are cheap: 400,000 of them cost promtool 3 s and 500 MB."""
        suite = {
            "rule_files": [str(path) for path in self.rules.files],
            "evaluation_interval": milliseconds(self.evaluation_seconds),
            "group_eval_order": self.rules.groups,
        }
        test = {"interval": milliseconds(self.recording.grid_seconds)}
        file.write(f'{json.dumps(suite)[:-1]},"tests":[{json.dumps(test)[:-1]},"input_series":[')
        input_series.write(self.recording, file)
        file.write(f'],"{self.kind}":[')
        file.write(",\n".join(map(json.dumps, self.questions)))
        file.write("]}]}\n")


def milliseconds(seconds: float) -> str:
    """Return a duration as promtool reads it."""
    return f"{round(seconds * 1000)}ms"
