"""A run, through a real Prometheus: the culprit comes first, and never are all ranks queried."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from tachograph.catalog import index as catalog
from tachograph.servers.prometheus_api import Prometheus, TimeSeries
from tachograph.top import queries
from tachograph.top.run_source import RunSource
from tests.schemas import conforms

ROOT = Path(__file__).resolve().parents[2]
HUNG, SICK = "llama-70b", "mixtral"
pytestmark = pytest.mark.e2e

Top = Callable[..., tuple[int, str, str]]


def rows(text: str, first: str) -> list[list[str]]:
    """Return the words of the rows below the heading that begins so."""
    lines = text.splitlines()
    begins = next(i for i, line in enumerate(lines) if line.split()[:2] == first.split())
    ends = next((i for i, line in enumerate(lines) if i > begins and "worst first ─" in line), len(lines))
    return [line.strip("▌! ").split() for line in lines[begins + 1 : ends]]


def test_a_hang(top: Top, crowd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hung run, the rank that all wait for is the first row, with its place, phase and why; the page is above."""
    monkeypatch.setenv("COLUMNS", "150")
    status, text, error = top(HUNG, "--prometheus", crowd.url, "--once")
    assert (status, error) == (0, "")
    lines = text.splitlines()
    assert lines[0].startswith(" NO STEP  Run llama-70b: no step for 34 s")
    assert lines[0].endswith("at data.py:88 load_shard (pid 4242).")
    assert lines[1].startswith(
        "   → py-spy dump --pid 4242 on node-05 shows where it stands; `tachograph top --exporter node-05` has "
    )
    del lines[: next(index for index, line in enumerate(lines) if line.startswith(" HUNG"))]
    assert lines[0].startswith(" HUNG 34 s  llama-70b  64 of 64 ranks up ")
    assert lines[1].startswith(" step 48,201 · last step ")
    assert re.match(r" critical RunHung  rank 43 node-05 GPU 3 .* for \d+ (s|min)", lines[3])
    assert [line.split()[:2] for line in lines[4:6]] == [
        ["warning", "GoodputLow"],
        ["warning", "GpuThermalThrottling"],  # of a node of the run, though it knows no run
    ]
    assert "TachographWatchdog" not in text
    assert "MfuDropped" not in text
    first = rows(text, "RANK STATE")[0]
    assert first[:11] == ["43", "culprit", "node-05", "3", "dp", "11,", "pp", "1", "data", "42", "s"]
    assert " 1 collective behind, at data" in text
    assert {row[1] for row in rows(text, "RANK STATE")[1:8]} == {"stalled"}  # what stands still is not running
    monkeypatch.setenv("COLUMNS", "220")
    assert (
        " 1 collective behind, at data.py:88 load_shard (pid 4242), RunHung"
        in top(HUNG, "--prometheus", crowd.url, "--once")[1]
    )
    hot = rows(text, "GPU NODE")[0]
    assert hot[:3] == ["1", "node-02", "17"]
    assert "thermal 40%, GpuThermalThrottling" in text


def test_a_sick_run(top: Top, crowd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Causes stand above victims and the healthy: who died first, whose NaN came first, who holds the run up."""
    monkeypatch.setenv("COLUMNS", "150")
    status, text, _ = top(SICK, "--prometheus", crowd.url, "--once")
    assert status == 0
    assert text.startswith(" RANK DEAD  Run mixtral: 1 rank died, rank 5 on node-20 first.\n   → ")
    assert "\n DEAD  mixtral  7 of 8 ranks up, 1 dead" in text
    assert "COORDINATES" not in text
    assert [row[:3] for row in rows(text, "RANK STATE")[:3]] == [["5", "died", "first"], ["2", "NaN", "first"],
                                                                ["3", "straggler", "node-20"]]  # fmt: skip
    assert "1.25 s/step · generate 750 ms (62%) · update 200 ms (17%) · idle 250 ms (21%) · 3.94M tok/s" in text
    assert re.search(r"loss NaN on 1 rank [▁-█]{20,}", text)
    assert re.search(r"MFU 30\.0%, usually 43\.0% █{15,}[▁-█]▁{8,}", text)
    assert re.search(r" 3 straggler .* 290 ms +10 ms .* backward", text)


def test_a_rank_that_moved_is_shown_where_it_lives(top: Top, crowd: Any) -> None:
    """A rank that another node still shows after it has moved has no second row."""
    facts = conforms("top", top(SICK, "--prometheus", crowd.url, "--json")[1])
    assert [(rank["node"], rank["state"]) for rank in facts["ranks"] if rank["rank"] == 6] == [("node-29", "running")]


def test_json(top: Top, crowd: Any) -> None:
    """The facts come as strict JSON in base units; what is not known is null, NaN a string."""
    status, text, _ = top(SICK, "--prometheus", crowd.url, "--json")
    facts = conforms("top", text)
    assert (status, facts["view"], facts["source"], facts["ranks_in_all"]) == (0, "run", crowd.url, 8)
    assert {json.dumps(rank["coordinates"]) for rank in facts["ranks"]} == {"{}"}
    (run,) = facts["runs"]
    assert (run["state"], run["step_seconds"], run["tokens_per_second"]) == ("dead", 1.25, 3_940_000)
    assert (run["mfu"], run["mfu_baseline"], run["goodput"]) == (0.3, 0.43, None)
    assert run["data_limit"] == 0.5
    assert run["parts_seconds"] == {"generate": 0.75, "update": 0.2, "idle": 0.25}
    by_rank = {rank["rank"]: rank for rank in facts["ranks"]}
    assert (by_rank[2]["loss"], by_rank[2]["marks"]) == ("NaN", ["NaN first"])
    assert by_rank[3]["marks"] == ["straggler"]
    assert (by_rank[3]["lag_seconds"], by_rank[3]["wait_seconds"], by_rank[3]["phase_seconds"]) == (0.29, 0.01, 41.5)
    assert [(one["name"], one["severity"]) for one in facts["alerts"]] == [("MfuDropped", "critical")]
    (note,) = facts["notes"]
    assert note.startswith("run mixtral misuses its recorder (72,024 unknown name): ")


class Counting(Prometheus):
    """Remembers how many series each answer had."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.answers: list[int] = []

    def instant(self, expression: str, at: float | None = None) -> list[TimeSeries]:
        found = super().instant(expression, at)
        self.answers.append(len(found))
        return found


def test_nobody_asks_for_all(crowd: Any) -> None:
    """However many ranks a run has, answers are as long as what is shown; the culprit is among the worst few."""
    prometheus = Counting(crowd.url)
    facts = RunSource(HUNG, prometheus, 4).fetch()
    assert facts.ranks[0].rank == 43
    assert (len(facts.ranks), len(facts.gpus), facts.ranks_in_all) == (4, 4, 64)
    assert max(prometheus.answers) <= 4 * len(queries.OF_GPUS)
    assert len(prometheus.answers) <= 9


def test_asked_for_by_number_and_by_node(crowd: Any) -> None:
    """A rank or a node that a filter names is shown though it is not among the worst; odd letters do no harm."""
    source = RunSource(HUNG, Prometheus(crowd.url), 9)
    assert 60 in [rank.rank for rank in source.fetch("60").ranks]
    assert {rank.rank for rank in source.fetch("NODE-04").ranks} >= set(range(32, 40))
    assert source.fetch('."\\]({+*é').ranks[0].rank == 43


def test_bad_input(top: Top, crowd: Any) -> None:
    """An unknown run, no Prometheus, no run named: one line that says what to do, and status 1 or 2."""
    status, out, error = top("lama-70b", "--prometheus", crowd.url, "--once")
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert error.endswith("the nearest is llama-70b (1 more)\n")
    status, _, error = top(HUNG, "--prometheus", "http://127.0.0.1:1", "--json")
    assert (status, error.count("\n")) == (1, 1)
    assert "no Prometheus at http://127.0.0.1:1: " in error
    assert top("--prometheus", crowd.url) == (2, "", "tachograph top: which RUN? it has llama-70b, mixtral\n")
    assert top("--prometheus", "http://127.0.0.1:1")[0] == 1
    assert top(HUNG, "--exporter", "node-3")[0] == 2
    assert top(HUNG, "--ranks", "0")[0] == 2


def test_every_name_is_recorded_or_in_the_catalog() -> None:
    """Whatever Prometheus is asked for exists: a metric of the catalog, or a series that our rules record."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "prometheus/rules").glob("*.yml"))
    recorded = {name for text in texts for name in re.findall(r"(?m)^\s+- record: (\S+)$", text)}
    asked = " ".join(
        [
            queries.figures("x"), queries.histories("x"), queries.states("x"), queries.alerts("x"),
            queries.worst_ranks("x", 3, "5 node-3"), queries.any_ranks("x", 3), queries.of_ranks("x", [1]),
            queries.worst_gpus("x", 3), queries.of_gpus(["GPU-1"]),
        ]
    )  # fmt: skip
    names = set(re.findall(r"\b(?:run|rank|node):\w+(?::\w+)?|tachograph_\w+", asked))
    assert len(names) > 30
    assert names - recorded - set(catalog.BY_NAME) == set()


@pytest.mark.parametrize("run", ["plain", 'with "quotes" and \\', "новый-run", "line\nbreak", "a|b.*"])
def test_any_name_of_a_run_can_be_asked_for(run: str) -> None:
    """A run's name never breaks out of its quotes."""
    for expression in (
        queries.figures(run), queries.histories(run), queries.states(run), queries.alerts(run),
        queries.worst_ranks(run, 3, f"5 {run}"), queries.any_ranks(run, 3), queries.of_ranks(run, [1, 2]),
        queries.worst_gpus(run, 3), queries.of_gpus(["GPU-1", "GPU-a.b"]),
    ):  # fmt: skip
        promql_parser.parse(expression)


def test_it_fits_a_terminal(top: Top, crowd: Any, fits: Callable[..., None]) -> None:
    """And is 100 columns wide in a file."""
    fits(lambda: print(top(SICK, "--prometheus", crowd.url, "--once")[1]))
    fits(lambda: print(top(HUNG, "--prometheus", crowd.url, "--once")[1]))
