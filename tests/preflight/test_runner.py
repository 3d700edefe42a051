"""Rank 0 leads, the others follow; one that is late, fails or falls silent is named and holds up nobody for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tachograph.preflight import limited, runner
from tachograph.preflight.finding import CheckReport, Conclusion, Facts, PreflightFinding
from tachograph.preflight.options import PreflightOptions
from tachograph.preflight.runner import Leader, follow
from tachograph.preflight.site import PreflightCheck, PreflightSite

WORLD = 3
LIMIT = 3.0
"""Seconds for what never comes: what comes on a busy machine is there before."""


class SharedExchange:
    """The exchange of ranks that are threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._changed = threading.Condition()

    def publish(self, key: str, value: Any) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def read(self, key: str, seconds: float) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, seconds):
                raise TimeoutError(key)
            return self._values[key]

    def gather(self, key: str, ranks: Collection[int], seconds: float) -> dict[int, Any]:
        deadline = time.monotonic() + seconds
        found = {}
        for rank in ranks:
            try:
                found[rank] = self.read(f"{key}/{rank}", max(deadline - time.monotonic(), 0))
            except TimeoutError:
                continue
        return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No long grace for those that never answer."""
    monkeypatch.setattr(runner, "GRACE_SECONDS", 2.0)


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    wrong = [rank for rank, one in facts.items() if one.get("wrong")]
    return Conclusion(str(sorted(facts)), [PreflightFinding("fail", "wrong", ranks=(rank,)) for rank in wrong])


def check(name: str, measure: Callable[[PreflightSite], Facts], **given: Any) -> PreflightCheck:
    return PreflightCheck(name, name, measure, conclude, **given)


def run(*checks: PreflightCheck, ranks: Collection[int] = range(WORLD), **options: Any) -> dict[str, CheckReport]:
    """Run the checks on rank 0 and on those of the others that come; nobody is late unless a test sets a limit."""
    exchange = SharedExchange()
    given = PreflightOptions(**{"limit": 60.0, "join_limit": 60.0, **options})
    lead = PreflightSite(given, exchange, 0, WORLD, 0, WORLD, under_launcher=True, node="a")
    others = [replace(lead, rank=rank, local_rank=rank, node_of={}) for rank in ranks if rank]
    threads = [threading.Thread(target=follow, args=(site, checks), daemon=True) for site in others]
    for thread in threads:
        thread.start()
    leader = Leader(lead, checks, lambda *_: None)
    reports = {report.check: report for report in leader.run()}
    leader.end({})
    return reports


def said(report: CheckReport) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.what, one.ranks) for one in report.findings]


def test_all_ranks_measure_and_rank_0_concludes() -> None:
    """Each check gets the facts of all."""
    found = run(check("one", lambda site: {"wrong": site.rank == 2}), check("two", lambda site: {}))
    assert said(found["ranks"]) == []
    assert said(found["one"]) == [("wrong", (2,))]
    assert (found["two"].state, found["two"].summary) == ("ok", "[0, 1, 2]")


def test_a_rank_that_does_not_come_is_named() -> None:
    """What needs all ranks is left out, the rest is made with those that came."""
    found = run(
        check("one", lambda site: {}), check("two", lambda site: {}, grouped=True), ranks=[0, 2], join_limit=LIMIT
    )
    assert said(found["ranks"]) == [("rank 1 did not come within 3.00 s", (1,))]
    assert (found["one"].state, found["one"].summary) == ("ok", "[0, 2]")
    assert (found["two"].state, found["two"].summary) == ("skipped", "rank 1 did not come")


def test_a_late_rank_is_named_and_the_next_check_is_made() -> None:
    """What it was doing is left alone."""
    release = threading.Event()

    def late(site: PreflightSite) -> Facts:
        if site.rank == 1:
            release.wait(60)
        return {}

    found = run(check("late", late), check("next", lambda site: {}), limit=LIMIT)
    release.set()
    assert said(found["late"]) == [("late did not end within 3.00 s on rank 1", (1,))]
    assert found["late"].summary == "[0, 2]"
    assert found["next"].summary == "[0, 1, 2]"


@pytest.mark.parametrize(
    ("grouped", "what", "ranks"),
    [(True, "ranks 0-1; rank 2 waits for it", (0, 1)), (False, "all ranks", (0, 1, 2))],
)
def test_of_ranks_that_wait_for_each_other_those_behind_are_named(
    grouped: bool, what: str, ranks: tuple[int, ...]
) -> None:
    """By how many exchanges they have begun, if it is a check in which ranks wait."""
    release = threading.Event()

    def stuck(site: PreflightSite) -> Facts:
        site.progress = 7 if site.rank == 2 else 3
        release.wait(60)
        return {}

    one = check("group", stuck, grouped=grouped)
    found = run(one, limit=LIMIT)
    release.set()
    assert said(found["group"]) == [(f"group did not end within 3.00 s on {what}", ranks)]


def test_a_failure_is_a_finding() -> None:
    """With its reason, once for all ranks that have it."""

    def broken(site: PreflightSite) -> Facts:
        if site.rank:
            raise RuntimeError("CUDA error: out of memory\nand more")
        return {}

    found = run(check("broken", broken))
    assert said(found["broken"]) == [("broken failed on ranks 1-2: RuntimeError: CUDA error: out of memory", (1, 2))]


def test_a_silent_rank_is_named_once() -> None:
    """It is not waited for again."""
    gone = threading.Event()

    class Gone(BaseException):
        pass

    def dying(site: PreflightSite) -> Facts:
        if site.rank == 2:
            gone.wait(60)
        return {}

    def never_published(check: PreflightCheck, site: PreflightSite) -> Facts:
        if site.rank == 2:
            gone.wait(60)
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "measured", never_published)
        found = run(
            check("one", dying),
            check("two", lambda site: {}),
            check("three", lambda site: {}, grouped=True),
            limit=LIMIT,
        )
    gone.set()
    assert said(found["one"]) == [("rank 2 stopped answering during one", (2,))]
    assert (found["two"].state, found["two"].summary) == ("ok", "[0, 1]")
    assert found["three"].summary == "rank 2 stopped answering"


def test_ranks_of_a_node_take_turns_on_its_cpus() -> None:
    """No two measure at the same time."""
    lock = threading.Lock()

    def alone(site: PreflightSite) -> Facts:
        if not lock.acquire(blocking=False):
            return {"wrong": True}
        threading.Event().wait(0.02)
        lock.release()
        return {}

    assert said(run(check("alone", alone, turns=True))["alone"]) == []


@pytest.mark.parametrize(("second", "named"), [(5, [1]), (10, [])])
def test_a_slow_rank_measures_once_more(second: int, named: list[int]) -> None:
    """It is named if it is slow again; the others measure once."""
    counts = [0] * WORLD

    def speed(site: PreflightSite) -> Facts:
        counts[site.rank] += 1
        return {"speed": 10 if site.rank != 1 else 5 if counts[1] == 1 else second}

    def named_slow(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
        late = [rank for rank, one in facts.items() if one["speed"] < 10]
        findings = [PreflightFinding("fail", "slow", ranks=(rank,)) for rank in late]
        return Conclusion("", findings, slow_ranks=frozenset(late))

    one = PreflightCheck("one", "one", speed, named_slow, better=lambda a, b: max(a, b, key=lambda each: each["speed"]))
    assert [rank for _, (rank,) in said(run(one)["one"])] == named
    assert counts == [1, 2, 1]


def test_what_is_missing_is_the_reason_for_a_skip() -> None:
    """An option, PyTorch, a launcher, a second rank, a process group."""
    alone = PreflightSite(PreflightOptions(), SharedExchange(), torch_problem="PyTorch is not installed here", node="a")
    checks = [
        check("option", lambda site: {}, missing=lambda options: "give --this"),
        check("torch", lambda site: {}, needs_torch=True),
        check("ranks", lambda site: {}, needs_ranks=True),
        check("grouped", lambda site: {}, grouped=True),
        check("none", lambda site: {}),
    ]
    found = {report.check: (report.state, report.summary) for report in Leader(alone, checks, lambda *_: None).run()}
    assert found == {
        "option": ("skipped", "give --this"),
        "torch": ("skipped", "PyTorch is not installed here"),
        "ranks": ("skipped", "start it under torchrun"),
        "grouped": ("skipped", "there is no process group"),
        "none": ("ok", "[0]"),
    }


def test_a_process_that_does_not_end_is_left_behind() -> None:
    """It is killed, and not waited for; one that fails says why."""
    with pytest.raises(limited.Late):
        limited.in_process("gpu_readings", {}, 0.0)
    with pytest.raises(RuntimeError, match="KeyError: 'folder'"):
        limited.in_process("folder_probe", {}, 20)
