"""Any query at a moment of a scenario, answered by promtool as Prometheus would, in both generations."""

from __future__ import annotations

import math

import pytest

from tachograph_lab import binaries
from tachograph_lab.replay.evaluation import EvaluationError
from tachograph_lab.replay.moment import answers, answers_at, read
from tachograph_lab.scenario import Fleet, Scenario
from tachograph_lab.scenario.faults import Kill, PrometheusRestart

RUN = "small"
BOTH = pytest.mark.parametrize("suite", ["bookworm", pytest.param("sid", marks=pytest.mark.slow)])


def story(*faults: Kill | PrometheusRestart) -> Scenario:
    fleet = Fleet(run=RUN, nodes=2, gpus_per_node=2)
    return Scenario(title="Small", story="Small.", lasts=120, fleet=fleet, faults=faults)


@BOTH
def test_what_prometheus_would_answer(suite: str) -> None:
    """Recorded series, alerts, metrics no rule reads, quotes in a query, numbers that are none, and nothing at all."""
    asked = ["run:ranks:count", 'ALERTS{alertname="RankDead"}', "tachograph_exporter_frames_total", "0/run:none:count",
             'label_replace(vector(0/0), "said", "a \\"b\\", {c} 1", "", "")', "-1e9 * vector(1/0)"]  # fmt: skip
    try:
        found = answers(story(Kill(at=61, rank=3)), 80, asked, suite)
    except binaries.BinariesUnavailable as error:
        if suite == "bookworm":
            pytest.fail(str(error))
        pytest.skip(str(error))
    assert list(found) == asked
    (ranks,) = found[asked[0]]
    assert (ranks.labels, ranks.samples) == ({"__name__": "run:ranks:count", "run": RUN}, ((80, 4.0),))
    assert [one.labels["rank"] for one in found[asked[1]]] == ["3"]
    assert len(found[asked[2]]) == 2
    assert found[asked[3]] == []
    (odd,) = found[asked[4]]
    assert odd.labels == {"said": 'a "b", {c} 1'}
    assert math.isnan(odd.value)
    assert found[asked[5]][0].value == -math.inf


@pytest.mark.slow
def test_before_the_fault() -> None:
    """The scenario goes no further than the moment; what a new Prometheus has not seen is not there."""
    query = "count_over_time(run:ranks:count[2m])"
    whole, after = answers_at(story(Kill(at=61, rank=3)), [60, 80.5], ["ALERTS", query]).values()
    dead = [[one for one in each["ALERTS"] if one.labels["alertname"] == "RankDead"] for each in (whole, after)]
    assert [len(each) for each in dead] == [0, 1]
    assert dead[1][0].samples == ((80.5, 1.0),)
    anew = answers(story(PrometheusRestart(at=45)), 60, [query])
    assert 0 < anew[query][0].value < whole[query][0].value


@pytest.mark.slow
def test_a_query_that_is_wrong() -> None:
    """It is an error, not an empty answer."""
    with pytest.raises(EvaluationError):
        answers(story(), 10, ["sum by ("])


def test_words_of_promtools_that_are_not_known() -> None:
    """They are an error, too."""
    with pytest.raises(EvaluationError, match="no such thing"):
        read("  FAILED:\n no such thing\n")
