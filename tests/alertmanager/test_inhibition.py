"""One incident, one page: the real Alertmanager, its real waiting times, and what a webhook receives from it.

Every incident below happens at once, in runs of their own: symptoms first, causes 2 s later, the order in which rules
and scrapes may well bring them. 13 s after the last one everything that is ever sent has been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph_lab import binaries
from tachograph_lab.pager import PagedAlert, Pager

ROOT = Path(__file__).resolve().parents[2]
PAGER = "http://localhost:5001"
CAUSES_AFTER = 2.0  # an evaluation of the slowest group that raises a cause
TOO_LONG = ("group_wait: 30s", "group_wait: 5m")
"""How long tickets and the second person wait: here 12 s."""
SYMPTOMS_WITHIN = 13.0  # the longest group_wait of a page, and a margin

Labels = Mapping[str, str]


def of(run: str, *alerts: str, **labels: str) -> list[Labels]:
    return [{"alertname": alert, "run": run, **labels} for alert in alerts]


GPU = {"instance": "node-1", "gpu": "3", "uuid": "GPU-d"}
OFF_THE_BUS = {"run": "bus", "rank": "8", "instance": "node-5", "gpu": "0", "uuid": "GPU-x"}
NOBODYS = {"instance": "node-6", "gpu": "1", "uuid": "GPU-y"}
NEIGHBOURS = {"instance": "node-60", "gpu": "0", "uuid": "GPU-n"}
SYMPTOMS: list[Labels] = [
    *of("dead", "RankFailed", "RunHung", "StragglerRank", "MfuDropped"),
    *of("frozen", "RunHung", "StragglerRank", "MfuDropped"),
    *of("failed", "RunHung"),
    *of("hung", "StragglerRank", "MfuDropped"),
    *of("slow", "MfuDropped"),
    *of("nan", "LossSpikeNotRecovering", "RankFailed"),
    *of("ecc", "RankFailed", rank="3", **GPU),
    *of("bystander", "MfuDropped"),
    *of("out-of-sight", "RunHung"),
    *of("last-words", "StragglerRank", rank="1", instance="node-20"),
    *of("no-gpu", "RankFailed", rank="0", instance="node-1"),
    *of("bus", "RunHung", "StragglerRank", "MfuDropped"),
    *of("trains-on", "StragglerRank", rank="2", instance="node-51"),
    *of("trains-on", "RunHung", rank="2", instance="node-51"),
    *of("gpu-hangs-run", "RunHung", "MfuDropped", "RestartLoop"),
    {"alertname": "GpuLost", **NOBODYS},
    *of("elsewhere", "RunHung", "RankFrozen", rank="0", instance="node-6"),
    *of("link", "RunHung", "MfuDropped"),
    *of("hot", "StragglerRank", rank="2", **GPU | {"uuid": "GPU-hot"}),
    *of("stalled", "MfuDropped", "ThroughputDropped"),
    *(label for rank in "01" for label in of("slow-node", "StragglerRank", rank=rank, instance="node-8")),
    *of("slow-node", "MfuDropped"),
    *of("loop", "RankFailed", "RunHung"),
    *of("liar", "InvariantBroken", rank="3", instance="node-9"),
    *of("starved-and-dead", "DataStall", "ThroughputDropped", "StragglerNode"),
    *of("link-aborts", "RankDead", "RestartLoop"),
    *of("liar-learns", "LossSpikeNotRecovering", "InvariantBroken"),
    *of("dev", "RankDead", rank="0", instance="node-30", tier="dev"),
    *of("dev", "MemoryLeak", severity="warning", tier="dev"),
    *of("hero", "RunHung", rank="0", instance="node-31", tier="hero"),
    *of("hero", "CheckpointStale", severity="warning", tier="hero"),
    *of("hero-night", "LossDiverging", severity="warning", tier="hero"),
    *of("hero-day", "GoodputLow", severity="warning", tier="hero"),
    *of("dead-node", "RunHung", "MfuDropped", "RunDown"),
    {"alertname": "ExporterDown", "instance": "node-40", "severity": "warning"},
    *of("blind", "RanksMissing", severity="warning"),
    *of("no-room", "CheckpointFailed", severity="warning", rank="4", instance="node-32"),
    *of("alice/rank", "RankDead", "RankFrozen", rank="1", **NEIGHBOURS),
    *of("alice/gpu", "GpuLost", **NEIGHBOURS | {"uuid": "GPU-o"}),
    *of("alice/node", "RankFrozen", rank="2", instance="node-61"),
    {"alertname": "GpuNvlinkDown", "instance": "node-61", "uuid": "GPU-p", "severity": "warning"},
]
CAUSES: list[Labels] = [
    *(label for rank in range(10) for label in of("dead", "RankDead", rank=str(rank), instance=f"node-{rank}")),
    *of("frozen", "RankFrozen", rank="1", instance="node-2"),
    *of("failed", "RankFailed", rank="1", instance="node-2"),
    *of("hung", "RunHung", rank="2", instance="node-3"),
    *of("slow", "StragglerRank", rank="2", instance="node-3"),
    *of("nan", "LossNotFinite", rank="2", instance="node-3"),
    {"alertname": "GpuEccUncorrected", **GPU},
    # One scrape brings all of these.
    *({"alertname": alert, **OFF_THE_BUS} for alert in ("GpuLost", "GpuEccUncorrected", "RankDead", "RankFrozen")),
    *of("bus", "RankDead", rank="9", instance="node-5", uuid="GPU-z"),
    {"alertname": "GpuXidFatal", **OFF_THE_BUS},
    *of("trains-on", "GpuXidFatal", rank="0", instance="node-50", gpu="0", uuid="GPU-t"),
    *of("gpu-hangs-run", "GpuHung", rank="0", instance="node-52", gpu="0", uuid="GPU-h"),
    *({"alertname": "GpuXidFatal", **NOBODYS, "gpu": gpu, "uuid": f"GPU-{gpu}"} for gpu in "67"),
    *of("link", "NicLinkDown", instance="node-7"),
    *of("hot", "GpuThermalThrottling", rank="2", severity="warning", **GPU | {"uuid": "GPU-hot"}),
    *({"alertname": "ExporterDown", "instance": f"node-{n}", "severity": "warning"} for n in (20, 21)),
    *of("blind", "RunBlind"),
    *of("stalled", "DataStall"),
    *of("slow-node", "StragglerNode", instance="node-8"),
    *of("loop", "RestartLoop"),
    *of("liar", "SilentDataCorruptionSuspected", rank="3", instance="node-9"),
    *of("starved-and-dead", "RankDead", rank="3", instance="node-9"),
    *of("link-aborts", "NicLinkDown", instance="node-33"),
    *of("liar-learns", "SilentDataCorruptionSuspected", rank="3", instance="node-34"),
    *of("dead-node", "NodeDown", "NicLinkDown", instance="node-40"),
    *of("dead-node", "RankDead", rank="9", instance="node-41"),
    *of("unreachable", "RankFrozen", rank="0", instance="node-42"),
    {"alertname": "TelemetryLost", "instance": "node-42", "severity": "warning"},
    *of("nobody-came", "RankDead", rank="4", instance="node-43"),
    *of("nobody-came", "RunDown"),
    *of("no-room", "RankDead", rank="4", instance="node-32"),
    *(one for uuid in "no" for one in of("bob/dev", "GpuXidFatal", tier="dev", **NEIGHBOURS | {"uuid": f"GPU-{uuid}"})),
    *of("bob/dev", "NodeDown", instance="node-61", tier="dev"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, alertmanager: Callable[..., Any]) -> Iterator[list[PagedAlert]]:
    """The notifications that were received."""
    folder = tmp_path_factory.mktemp("alertmanager")
    shipped = (ROOT / "alertmanager/alertmanager.yml").read_text(encoding="utf-8")
    for long in TOO_LONG:
        assert long in shipped
        shipped = shipped.replace(long, "group_wait: 12s")
    program = binaries.find("bookworm")["alertmanager"]
    with Switchboard() as pager, alertmanager(program, folder / "am", shipped.replace(PAGER, pager.url)) as running:
        running.raise_alerts(SYMPTOMS)
        pager.wait_for(lambda page: False, CAUSES_AFTER)
        running.raise_alerts(CAUSES)
        pager.wait_for(lambda page: False, SYMPTOMS_WITHIN)
        yield pager.pages()


class Switchboard(Pager):
    """A pager that accepts an alert once per receiver."""

    def accept(self, receiver: str, notification: Mapping[str, Any]) -> None:
        marked = [one | {"fingerprint": f"{receiver} {one['fingerprint']}"} for one in notification["alerts"]]
        super().accept(receiver, {**notification, "alerts": marked})


def received(pages: list[PagedAlert], run: str) -> set[str]:
    return {page.alert for page in pages if page.labels.get("run") == run}


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("run", "cause"),
    [
        ("dead", "RankDead"),
        ("frozen", "RankFrozen"),
        ("failed", "RankFailed"),
        ("hung", "RunHung"),
        ("slow", "StragglerRank"),
        ("nan", "LossNotFinite"),
        ("link", "NicLinkDown"),
        ("hot", "StragglerRank"),
        ("stalled", "DataStall"),
        ("slow-node", "StragglerNode"),
        ("loop", "RestartLoop"),
        ("liar", "SilentDataCorruptionSuspected"),
        ("starved-and-dead", "RankDead"),
        ("link-aborts", "NicLinkDown"),
        ("liar-learns", "SilentDataCorruptionSuspected"),
        ("no-room", "RankDead"),
        ("dead-node", "NodeDown"),
        ("blind", "RunBlind"),
    ],
)
def test_the_cause_pages_and_its_symptoms_do_not(pages: list[PagedAlert], run: str, cause: str) -> None:
    """A symptom that comes 2 s before its cause still waits for it."""
    assert received(pages, run) == {cause}


@pytest.mark.e2e
def test_ten_dead_ranks_are_one_notification(pages: list[PagedAlert]) -> None:
    """They are alerts of one run and one name, and there is nothing to wait for."""
    dead = [page for page in pages if page.alert == "RankDead" and page.labels["run"] == "dead"]
    assert len(dead) == 10
    assert len({page.time for page in dead}) == 1


@pytest.mark.e2e
def test_broken_memory_explains_the_rank_on_that_gpu_and_no_other(pages: list[PagedAlert]) -> None:
    """They are compared by node and uuid; a rank of the same node without a GPU is not inhibited."""
    assert "GpuEccUncorrected" in {page.alert for page in pages}
    assert received(pages, "ecc") == set()
    assert received(pages, "no-gpu") == {"RankFailed"}


@pytest.mark.e2e
def test_several_faults_of_one_gpu_are_one_page(pages: list[PagedAlert]) -> None:
    """A GPU that has fallen off the bus is one page, not others for its dead rank and the run that follows."""
    assert received(pages, "bus") == {"GpuXidFatal"}


@pytest.mark.e2e
def test_a_broken_gpu_explains_its_node_and_a_run_that_stands_still(pages: list[PagedAlert]) -> None:
    """A rank that another node is blamed for is paged beside it; a hang without a name, or a restart loop, is not."""
    assert received(pages, "trains-on") == {"GpuXidFatal", "RunHung"}
    assert received(pages, "gpu-hangs-run") == {"GpuHung"}


@pytest.mark.e2e
def test_a_gpu_without_a_run_is_paged_by_node_and_excuses_no_run(pages: list[PagedAlert]) -> None:
    """GPUs that no run is known to use are paged together; a fault of a run beside them is paged, too."""
    nobodys = [page for page in pages if page.labels.get("instance") == "node-6" and "run" not in page.labels]
    assert sorted((page.alert, page.labels["gpu"]) for page in nobodys) == [
        ("GpuLost", "1"), ("GpuXidFatal", "6"), ("GpuXidFatal", "7")]  # fmt: skip
    assert len({page.time for page in nobodys if page.alert == "GpuXidFatal"}) == 1
    assert received(pages, "elsewhere") == {"RankFrozen"}


@pytest.mark.e2e
def test_what_has_no_cause_is_paged(pages: list[PagedAlert]) -> None:
    """Faults of another run inhibit nothing here, and neither does the ticket for an exporter that is gone."""
    assert received(pages, "bystander") == {"MfuDropped"}
    assert received(pages, "out-of-sight") == {"RunHung"}
    assert received(pages, "last-words") == {"StragglerRank"}
    assert received(pages, "unreachable") == {"RankFrozen"}
    assert received(pages, "nobody-came") == {"RankDead", "RunDown"}


@pytest.mark.e2e
def test_an_alert_of_another_run_silences_nothing(pages: list[PagedAlert]) -> None:
    """Neither a rank nor a fault on its GPU or node; an alert that wakes nobody does not silence a ticket either."""
    assert received(pages, "alice/rank") == {"RankDead"}
    assert received(pages, "alice/gpu") == {"GpuLost"}
    assert received(pages, "alice/node") == {"RankFrozen"}
    assert [page.receiver for page in pages if page.alert == "GpuNvlinkDown"] == ["ticket"]


@pytest.mark.e2e
def test_exporters_that_go_dark_together_are_one_notification(pages: list[PagedAlert]) -> None:
    """A rack is one incident; the exporter of a node that is down is not reported."""
    down = [page for page in pages if page.alert == "ExporterDown"]
    assert {page.labels["instance"] for page in down} == {"node-20", "node-21"}
    assert {page.receiver for page in down} == {"ticket"}
    assert len({page.time for page in down}) == 1


@pytest.mark.e2e
def test_the_tier_of_a_run_decides_who_is_woken(pages: list[PagedAlert]) -> None:
    """No page for dev; for hero also a page for tickets that cannot wait, and soon a second person."""
    to: dict[str, set[tuple[str, str]]] = {}
    for page in pages:
        to.setdefault(page.labels.get("run", ""), set()).add((page.alert, page.receiver))
    assert to["dev"] == {("RankDead", "chat"), ("MemoryLeak", "chat")}
    assert to["hero"] == {("RunHung", "page"), ("RunHung", "escalation")}
    assert to["hero-night"] == {("LossDiverging", "page")}
    assert to["hero-day"] == {("GoodputLow", "ticket")}


@pytest.mark.e2e
def test_all_of_it_went_to_the_pager(pages: list[PagedAlert]) -> None:
    """Only the receiver `page` is notified, except for runs of another tier and of tickets."""
    pages = [page for page in pages if page.labels["severity"] == "critical"]
    assert {page.receiver for page in pages if "tier" not in page.labels} == {"page"}
