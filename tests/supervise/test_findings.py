"""Findings are read as the exporter concluded them: from the real answer of a node whose ranks a test plays."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tachograph.node.gpu.conclusions import gpu_status
from tachograph.node.ranks.frames import Peer
from tachograph.node.samples import GpuIdentity, Sample
from tachograph.node.web.private import WITHHELD
from tachograph.supervise import findings
from tachograph.supervise.findings import FindingSource
from tachograph.supervise.run_seen import RunSeen, Unknown
from tachograph.supervise.triggers import worst
from tachograph_lab.checkout import root
from tests.supervise.world import dead, rank, run


def source(pages: Any, *names: str) -> FindingSource:
    return FindingSource(f"http://{urlsplit(pages.url).netloc}", names or ("r",))


def test_a_run_is_read_with_its_ranks(pages: Any, played: Any) -> None:
    """Its state, steps and processes; nothing is wrong with it."""
    played.table.greet("a")
    played.table.tell("a", 7, step=7)
    played.serve()
    seen = source(pages).look(100.0)
    assert isinstance(seen, RunSeen)
    assert (seen.name, seen.state, seen.step, seen.is_alive) == ("r", "running", 7, True)
    assert worst(seen) is None


@pytest.mark.parametrize("name", ["step", "rank", "steps", "culprit"])
def test_a_number_that_the_journal_does_not_take_is_none(pages: Any, played: Any, name: str) -> None:
    """A budget would be spent by entries that the next supervisor does not read."""
    played.table.greet("a")
    played.table.tell("a", 7, step=7)
    played.serve()
    pages.judged = re.sub(rf'"{name}": (?:\d+|null)', f'"{name}": {1 << 60}', pages.judged)
    seen = source(pages).look(100.0)
    assert isinstance(seen, Unknown)
    assert "1.15e+18 is too large for a step or a rank" in seen.why


def test_a_lost_loss_is_a_finding_of_its_first_step(pages: Any, played: Any) -> None:
    """In the exporter's words."""
    played.table.greet("a")
    metrics = {"loss": "NaN", "nonfinite_step": {"loss": 5}}
    played.table.tell("a", 7, step=7, metrics=metrics)
    played.serve()
    seen = source(pages).look(100.0)
    assert isinstance(seen, RunSeen)
    found = worst(seen)
    assert found is not None
    assert (found.trigger, found.ranks, found.step) == ("loss_not_finite", (0,), 5)
    assert found.text == "Rank 0 of run r: the loss has been NaN since step 5."


def test_what_ended_before_the_attempt_is_not_its_own(pages: Any, played: Any) -> None:
    """The dead rank of the last attempt is shown until the next one says hello: that is no second death."""
    played.table.greet("a")
    played.table.tell("a", 7, step=7)
    played.table.lost("a")
    played.hand.turn(30.0)
    played.table.tick()
    played.serve()
    judged = json.loads(pages.judged)
    assert judged["runs"][0]["ranks"][0]["state"] == "dead"
    seen = source(pages).look(100.0)
    assert isinstance(seen, RunSeen)
    assert worst(seen) is not None
    assert isinstance(source(pages).look(5.0), Unknown)


def test_what_is_shown_before_an_attempt_begins_is_of_an_earlier_one(pages: Any, played: Any) -> None:
    """However late its end is seen; the next process of the rank is new, also for an exporter that lost its counts."""
    played.table.greet("a")
    played.table.tell("a", 7, step=7)
    played.serve()
    asked = source(pages)
    assert isinstance(asked.look(100.0), RunSeen)
    asked.begin()
    played.table.lost("a")
    played.hand.turn(5.0)
    played.table.tick()
    played.serve()
    assert isinstance(asked.look(100.0), Unknown)
    played.table.greet("b", peer=Peer(1000, 5151))
    played.table.tell("b", 1, step=7)
    played.serve()
    assert isinstance(asked.look(100.0), RunSeen)
    asked.begin()
    (told,) = (one for run in json.loads(pages.judged)["runs"] for one in run["ranks"])
    pages.judged = pages.judged.replace(f'"pid": "{told["pid"]}"', '"pid": "6161"').replace(
        '"restarts": 1', '"restarts": 0'
    )
    assert isinstance(asked.look(100.0), RunSeen)


def test_a_part_of_a_run_is_not_judged(pages: Any, played: Any) -> None:
    """Ranks on another node, or that have not begun: nothing is known of them, so nothing of the run."""
    played.table.greet("a", world_size=2)
    played.table.tell("a", 7, step=7)
    played.serve()
    seen = source(pages).look(100.0)
    assert isinstance(seen, Unknown)
    assert "only 1 of the 2 ranks of run r have reported" in seen.why


def test_a_run_is_found_under_the_name_of_its_owner(pages: Any, played: Any) -> None:
    """As the exporter shows it where several users have runs; one of another user is not ours."""
    played.table.greet("a", run="alice/r")
    played.serve()
    assert isinstance(source(pages, "r", "alice/r").look(9.0), RunSeen)
    assert source(pages, "r", "bob/r").look(9.0) == Unknown("no rank of run r has reported to the exporter")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (None, "answers 503"), ("", "is not a node's findings"), ("[]", "is not a node's findings"),
        ('{"version": 2}', "speaks version 2, not 1"), ('{"version": 1}', "is not a node's findings"),
        ('{"version": 1, "runs": [{"run": "r", "ranks": [{}]}]}', "is not a node's findings"),
        ('{"version": 1, "runs": []}', "no rank of run r has reported"),
    ],
)  # fmt: skip
def test_any_other_answer_is_unknown(pages: Any, body: str | None, why: str) -> None:
    """With what was wrong with it, and never an exception."""
    pages.judged = body
    seen = source(pages).look(9.0)
    assert isinstance(seen, Unknown)
    assert why in seen.why


def test_nobody_there_is_unknown() -> None:
    """No exporter at all."""
    seen = FindingSource("http://127.0.0.1:1", ["r"]).look(9.0)
    assert isinstance(seen, Unknown)
    assert "does not answer" in seen.why


def test_a_message_that_is_withheld_is_no_line() -> None:
    """Two failures of which this reader sees nothing are not the same failure."""
    assert WITHHELD.startswith(findings.WITHHELD)
    failed = rank(0, state="failed", end_reason="exception", ended_seconds=1.0, message=WITHHELD)
    found = worst(run(failed))
    assert found is not None
    assert found.line == ""


def test_what_explains_most_comes_first() -> None:
    """A dead rank explains the hang of the others."""
    hangs = run(*dead().ranks, rank(2, step=10), state="hung")
    found = worst(hangs)
    assert found is not None
    assert found.trigger == "dead"


@pytest.mark.parametrize("value", [[], {}, "x", True, 1e999, "NaN", 7, None])
def test_a_fact_of_another_type_is_unknown(pages: Any, played: Any, value: object) -> None:
    """Whatever it is: an answer is read, or nothing is known, and it is no fault of ours."""
    played.table.greet("a")
    played.table.tell("a", 7, step=7)
    played.serve()
    said = json.loads(pages.judged)
    for place in (said, said["runs"][0], said["runs"][0]["ranks"][0]):
        for key, before in list(place.items()):
            place[key] = value
            pages.judged = json.dumps(said)
            seen = source(pages).look(100.0)
            if isinstance(seen, RunSeen):
                worst(seen)
                assert seen.step is None or isinstance(seen.step, int)
                assert all(isinstance(one.pid, str) for one in seen.ranks)
            place[key] = before


@pytest.mark.parametrize(("path", "known"), [("/a\n", True), ("/\0", False), ("/\ud800", False), ("/" * 4096, False)])
def test_a_path_that_no_file_can_have_is_not_known(pages: Any, played: Any, path: str, known: bool) -> None:
    """A loop may register anything; no program can be given it, as an argument or in its environment."""
    played.table.greet("a")
    played.serve()
    said = json.loads(pages.judged)
    said["runs"][0]["checkpoints"] = [{"step": 7, "time": 1.0, "path": path, "durable": True, "suspect": False}]
    pages.judged = json.dumps(said)
    seen = source(pages).look(100.0)
    assert isinstance(seen, RunSeen)
    assert [one.path for one in seen.checkpoints] == [path if known else ""]


def test_the_run_of_its_owner_comes_first(pages: Any, played: Any) -> None:
    """Root's run of the same name, which has no owner before it, is another one."""
    played.table.greet("a", run="r")
    played.table.greet("b", run="alice/r", peer=Peer(1000, 5151))
    played.serve()
    for _ in range(2):
        seen = source(pages, "r", "alice/r").look(9.0)
        assert isinstance(seen, RunSeen)
        assert seen.name == "alice/r"
        said = json.loads(pages.judged)
        said["runs"].reverse()
        pages.judged = json.dumps(said)


def test_an_answer_that_never_ends_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header byte by byte: each is in time, and the supervisor has signals to pass on. It asks no second time."""
    monkeypatch.setattr(findings, "LOOK_SECONDS", 0.3)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            taken, _ = server.accept()
            with taken:
                taken.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not done.wait(0.1):
                    taken.sendall(b"x")

        slow = threading.Thread(target=trickle)
        slow.start()
        asked = FindingSource(f"http://127.0.0.1:{server.getsockname()[1]}", ["r"])
        assert "no whole answer within 0.3 s" in str(asked.look(9.0))
        assert "the last question is still open" in str(asked.look(9.0))
        done.set()
        slow.join()


GPU = GpuIdentity("2", "GPU-2", "NVIDIA H100 80GB HBM3")


def xid(number: int, action: str, ago: float) -> Callable[[float], Sequence[Sample]]:
    """Return what the exporter shows of an Xid so many seconds ago, given the time of the day."""
    labels = (GPU.index, GPU.uuid, str(number))
    return lambda wall: (
        Sample(catalog.GPU_XID_INFO, (*labels, action, "m"), 1.0),
        Sample(catalog.GPU_XID_TIMESTAMP, labels, wall - ago),
    )


def shown(metric: Metric, value: str) -> Callable[[float], Sequence[Sample]]:
    return lambda _: (Sample(metric, (GPU.index, GPU.uuid, value), 1.0),)


FAULTS: dict[str, tuple[Callable[[float], Sequence[Sample]], bool]] = {
    "lost": (shown(catalog.GPU_UNAVAILABLE, "lost"), True),
    "hung": (shown(catalog.GPU_UNAVAILABLE, "hung"), True),
    "not read, as our worker is gone": (shown(catalog.GPU_UNAVAILABLE, "worker"), False),
    "not read after an upgrade": (shown(catalog.GPU_UNAVAILABLE, "driver_mismatch"), False),
    "to be reset": (shown(catalog.GPU_RECOVERY_ACTION, "gpu_reset"), True),
    "to be reset once its work has ended": (shown(catalog.GPU_RECOVERY_ACTION, "drain_and_reset"), False),
    "well": (shown(catalog.GPU_RECOVERY_ACTION, "none"), False),
    "fatal Xid": (xid(79, "reboot", 5.0), True),
    "fatal Xid of yesterday": (xid(79, "reboot", 86_400.0), False),
    "Xid of a program": (xid(13, "application", 5.0), False),
    "Xid that does not page": (xid(163, "reboot", 5.0), False),
    "Xid that nobody knows": (xid(999, "unknown", 5.0), False),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_gpu_is_broken_if_it_pages(pages: Any, played: Any, name: str) -> None:
    """What the work on it may outlast is no reason to end the run, nor what only we cannot read, nor an old error."""
    samples, is_broken = FAULTS[name]
    played.table.greet("a", uuid=GPU.uuid)
    played.table.tell("a", 7, step=7)
    played.serve([GPU], samples(played.hand.clock.wall()))
    seen = source(pages).look(100.0)
    assert isinstance(seen, RunSeen)
    found = worst(seen)
    assert (found is not None and found.trigger == "gpu_fault") is is_broken
    assert seen.ranks[0].has_gpu_trouble is is_broken


def test_a_broken_gpu_is_one_of_the_rules() -> None:
    """The reasons and the time that its pages have."""
    rules = (root() / "prometheus/src/gpu_faults.yml").read_text()
    reasons = set(re.findall(r'tachograph_gpu_unavailable_info\{reason=~?"([a-z_|]+)"\}\n? *\)', rules))
    assert {reason for each in reasons for reason in each.split("|")} == gpu_status.ENDS_WORK
    assert f"- {gpu_status.FATAL_XID_SECONDS:g})" in rules


@pytest.mark.parametrize(
    ("runs", "name"),
    [
        ([("r", "j")], "r"),
        ([("r", "old"), ("uid:1000/r", "j")], "uid:1000/r"),  # the pods' user is not known outside of them
        ([("r", "j"), ("eve/other", "j"), ("eve/r", "x")], "r"),
        ([("r", "j"), ("eve/r", "j")], None),  # any user may say any name, and any job
        ([("r", "")], "r"),  # whose ranks say no job, which is said later
        ([("eve/r", "x")], None),
    ],
)
def test_a_run_in_pods_may_have_any_owner(
    pages: Any, played: Any, runs: Sequence[tuple[str, str]], name: str | None
) -> None:
    """Its ranks say their job, which tells it from a run of that name that another user has; not if both say it."""
    played.table.greet("a")
    played.serve()
    said = json.loads(pages.judged)
    (one,) = said["runs"]
    (shown,) = one["ranks"]
    said["runs"] = [{**one, "run": run_, "ranks": [{**shown, "job_id": job}]} for run_, job in runs]
    pages.judged = json.dumps(said)
    address = f"http://{urlsplit(pages.url).netloc}"
    seen = FindingSource(address, ["r"], job="j").look(100.0)
    assert (seen.name if isinstance(seen, RunSeen) else None) == name


def test_ranks_of_earlier_attempts_in_pods_are_left_out(pages: Any, played: Any) -> None:
    """Also where one has not been seen to end: they are known by their job."""
    played.table.greet("a")
    played.serve()
    said = json.loads(pages.judged)
    (shown,) = said["runs"][0]["ranks"]
    said["runs"][0]["ranks"] = [{**shown, "job_id": "j"}, {**shown, "rank": 1, "job_id": "old"}]
    pages.judged = json.dumps(said)
    address = f"http://{urlsplit(pages.url).netloc}"
    seen = FindingSource(address, ["r"], job="j", earlier_jobs=["old"]).look(100.0)
    assert isinstance(seen, RunSeen)
    assert [(one.rank, one.job_id) for one in seen.ranks] == [(0, "j")]
