"""The state file: the next exporter has what one saved, and any other content of the file does no harm."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.ranks import saved_totals
from tachograph.node.ranks.earlier_processes import EarlierProcess
from tachograph.node.ranks.frames import Bye, FrameError
from tachograph.node.ranks.rank_table import RECONNECTED_SECONDS
from tachograph.node.ranks.saved_totals import SavedTotals
from tachograph.node.ranks.state_file import MAX_BYTES, StateFile, boot_id
from tachograph.node.ranks.state_keeper import StateKeeper

STEP = {"schema": 3, "sum": 1.0, "buckets": {"-8": 2}}
MERGED = {"productive_seconds_total": 5.0, "lost_seconds_total": {"data": 1.0}}


def restarted(table: Any, table_of: Any, two_gpus: Any) -> Any:
    """Return the table of the next exporter."""
    after = table_of(two_gpus)
    after.restore(saved_totals.decode(saved_totals.encode(table.saved("boot"))))
    return after


def test_sums_and_restarts_go_on(table: Any, table_of: Any, two_gpus: Any, hand: Any) -> None:
    """Counts of ended and of living processes are each counted once; restarts do not fall."""
    table.greet(gone := object(), table.ME)
    table.tell(gone, metrics=MERGED, histograms={"step_seconds": STEP}, step=9)
    table.lost(gone)
    table.greet(link := object(), table.OTHER)
    table.tell(link, seq=1, metrics=MERGED, histograms={"step_seconds": STEP}, step=3)
    shown = table.shown()
    assert shown["train_productive_seconds_total", "r"] == 10.0
    after = restarted(table, table_of, two_gpus)
    assert after.shown()["train_productive_seconds_total", "r"] == 10.0
    welcome = after.greet(again := object(), table.OTHER)
    assert (welcome.last_step, welcome.ended) == (3, None)
    after.tell(again, seq=2, metrics=MERGED, histograms={"step_seconds": STEP}, step=3)
    del shown["rank_ended_timestamp_seconds", "r", "0", "died"]  # of the first process, which the present one follows
    assert after.shown() == shown
    third = restarted(after, table_of, two_gpus)
    hand.turn(RECONNECTED_SECONDS + 1.0)
    third.greet(new := object(), table.ME)
    third.tell(new, seq=1, metrics=MERGED)
    assert third.shown()["train_productive_seconds_total", "r"] == 15.0
    assert third.shown()["train_restarts_total", "r", "0"] == 2


def test_who_lived_is_awaited(table: Any, table_of: Any, two_gpus: Any, hand: Any) -> None:
    """A helper of the training, or a second job, that is there before it is back does not take its rank."""
    table.greet(link := object(), table.ME)
    table.tell(link, step=9)
    after = restarted(table, table_of, two_gpus)
    with pytest.raises(FrameError, match="held by pid 4242 in attempt 0") as refusal:
        after.greet(object(), table.OTHER)
    assert refusal.value.reason == "conflict"
    later = restarted(table, table_of, two_gpus)
    later.greet(object(), table.OTHER, attempt=1)
    assert after.greet(object(), table.ME).last_step == 9
    absent = restarted(table, table_of, two_gpus)
    hand.turn(RECONNECTED_SECONDS + 1.0)
    absent.greet(object(), table.OTHER)
    assert absent.states() == ["running"]


FINE = STEP | {"fine": {"-33": 1, "-32": 1}}


def test_fine_buckets_go_on(table: Any, table_of: Any, two_gpus: Any) -> None:
    """Each count of a native histogram is there once after a restart, of ranks with fine buckets and without."""

    def native(of: Any) -> Any:
        return next(each.native for each in of.samples() if each.metric.name == "tachograph_train_step_seconds")

    table.greet(fine := object())
    table.greet(coarse := object(), table.OTHER, rank=1)
    table.tell(fine, histograms={"step_seconds": FINE})
    table.tell(coarse, histograms={"step_seconds": STEP})
    before = native(table)
    assert before == {-33: 1, -32: 1, -34: 2}
    after = restarted(table, table_of, two_gpus)
    assert native(after) == before
    after.greet(fine := object())
    after.greet(coarse := object(), table.OTHER, rank=1)
    for seq, link, said in ((2, fine, FINE), (2, coarse, STEP), (3, coarse, FINE)):
        after.tell(link, seq=seq, histograms={"step_seconds": said})
    assert native(after) == before


def test_an_earlier_release_reads_the_file(table: Any) -> None:
    """It knows classic counts of runs and coarse ones of ranks; after going back to it nothing is counted twice."""
    table.greet(link := object())
    table.tell(link, histograms={"step_seconds": FINE})
    (run,) = table.saved("boot").runs
    assert run.histograms["step_seconds"][0][12] == sum(run.histograms["step_seconds"][0]) == 2
    assert run.processes[0].observed == {"step_seconds": ({-8: 2}, 1.0)}


def test_a_file_of_an_earlier_release(table: Any, table_of: Any, two_gpus: Any) -> None:
    """It has no fine buckets: the classic ones go on, and a rank that now sends fine ones counts once."""
    table.greet(link := object())
    table.tell(link, histograms={"step_seconds": STEP})
    file = json.loads(saved_totals.encode(table.saved("boot")))
    for part in (file["runs"][0], *file["runs"][0]["processes"]):
        del part["fine"]
    after = table_of(two_gpus)
    after.restore(saved_totals.decode(json.dumps(file).encode()))
    after.greet(link := object())
    after.tell(link, seq=2, histograms={"step_seconds": FINE})
    (found,) = (each for each in after.samples() if each.metric.name == "tachograph_train_step_seconds")
    assert (found.cumulative[-1], found.sum) == (2, 1.0)


@pytest.mark.parametrize("frame", [{"progress_time": 99.0}, {"metrics": {"steps_total": 5}}])
def test_a_standstill_is_as_long_after_a_restart(
    table: Any, table_of: Any, two_gpus: Any, hand: Any, frame: dict[str, Any]
) -> None:
    """Also where a clock was set meanwhile, and where the rank says nothing but the steps that it has counted."""
    table.greet(link := object())
    table.tell(link, seq=1, time=100.0, step=5, **frame)
    began = table.rank("r", 0).progress
    hand.turn(30.0)
    table.tell(link, seq=2, time=130.0, step=5, **frame)
    after = restarted(table, table_of, two_gpus)
    after.greet(again := object())
    after.tell(again, seq=3, time=3731.0, step=5, **frame)
    assert after.rank("r", 0).progress == began
    after.tell(again, seq=4, time=3732.0, step=6, **{"progress_time": 3731.5, "metrics": {"steps_total": 6}})
    assert after.rank("r", 0).progress >= began + 29.0


def test_ends_are_shown_again(table: Any, table_of: Any, two_gpus: Any, hand: Any) -> None:
    """Who died, failed, was asked to end or has finished is so after a restart, once the others are back.

    Since as long, and no longer than without it.
    """
    facts = {"tier": "hero"}
    for rank in range(5):
        table.greet(rank, rank=rank, world_size=6, uuid="GPU-bbbb", facts=facts)
        table.tell(rank, step=9, metrics={"steps_total": 10}, progress_time=100.0)
    table.lost(0)
    table.bye(1, Bye(v=1, outcome="failed", category="oom", message="CUDA out of memory. Tried to allocate 2 GiB"))
    table.bye(2, Bye(v=1, outcome="failed", category="terminated", message="SIGTERM"))
    table.bye(3, Bye(v=1, outcome="finished"))
    hand.turn(30.0, table.tick)
    table.heard(4)
    shown = table.shown()
    kinds = ("run_first_end_seconds", "run_finished_timestamp_seconds", "run_ranks", "run_last_words_age_seconds")
    names = (*kinds, "rank_ended_timestamp_seconds", "run_tier")
    before = {key: value for key, value in shown.items() if key[0] in names}
    assert {key[2] for key in before if key[0] == kinds[0]} == {"died", "failed", "told"}
    after = restarted(restarted(table, table_of, two_gpus), table_of, two_gpus)
    hand.turn(1.0, after.tick)
    assert not any(key[0] == "run_ranks" for key in after.shown())
    after.greet(again := object(), rank=4, world_size=6, uuid="GPU-bbbb", facts=facts)
    after.tell(again, step=9, metrics={"steps_total": 10}, progress_time=100.0)
    hand.turn(5.0, after.tick)
    aged = {
        key: value + 6.0 if key[0] in ("run_first_end_seconds", "run_last_words_age_seconds") else value
        for key, value in before.items()
    }
    assert {key: value for key, value in after.shown().items() if key in aged or key[0] in kinds} == aged
    after.greet(object(), table.OTHER, rank=0, world_size=6, attempt=1)
    late = restarted(after, table_of, two_gpus)
    hand.turn(1000.0, late.tick)
    assert not any(key[0] == "run_first_end_seconds" for key in late.shown())


def test_what_a_rank_makes_up_costs_its_own_run(table: Any, table_of: Any, two_gpus: Any, hand: Any) -> None:
    """Counts at the end of what a double can hold, again and again, do not spoil the file for other users' runs."""
    table.greet(link := object(), table.ME, run="mine")
    table.tell(link, metrics=MERGED)
    rude = saved_totals.Peer(666, 6)
    huge = {"schema": 3, "sum": 1.7e308, "buckets": {f"{index}": 2**53 for index in range(-240, 241)}}
    for process in range(5):
        table.greet(link := object(), rude, run="rude", pid=process, attempt=2**53 - 1 if process == 0 else 2**53)
        table.tell(link, metrics={"productive_seconds_total": 1.7e308}, histograms={"step_seconds": huge})
        table.tell(link, seq=0)  # another process behind the same pid
        table.lost(link)
    after = restarted(table, table_of, two_gpus)
    assert after.shown()["train_productive_seconds_total", "mine"] == 5.0
    assert {"train_step_seconds", "train_productive_seconds_total"} <= {
        key[0] for key in after.shown() if "rude" in key
    }


@pytest.mark.parametrize("spoilt", [{"run": 7}, {"run": "x", "owner": -1}, {"totals": {"a": 1}}, None, [[[]]]])
def test_one_bad_run_costs_itself(table: Any, table_of: Any, two_gpus: Any, spoilt: object) -> None:
    """The others are remembered."""
    table.greet(link := object(), table.ME)
    table.tell(link, metrics=MERGED)
    file = json.loads(saved_totals.encode(table.saved("boot")))
    file["runs"].insert(0, spoilt)
    file["lives"].append(spoilt)
    after = table_of(two_gpus)
    after.restore(saved_totals.decode(json.dumps(file).encode()))
    assert after.shown()["train_productive_seconds_total", "r"] == 5.0


def test_a_name_is_its_owners_after_a_restart(table: Any, table_of: Any, two_gpus: Any, hand: Any) -> None:
    """While its ranks may still return, a run belongs to its owner; afterwards it is forgotten."""
    table.greet(object(), table.ME)
    after = restarted(table, table_of, two_gpus)
    with pytest.raises(Exception, match="belongs to uid 1000"):
        after.greet(object(), saved_totals.Peer(666, 1))
    hand.turn(901.0, after.tick)
    assert after.greet(object(), saved_totals.Peer(666, 1)).last_step is None


def test_lives_are_kept(table: Any, table_of: Any, two_gpus: Any, hand: Any) -> None:
    """A rank that was forgotten before the restart still hears its last step after it."""
    table.greet(link := object(), table.ME)
    table.tell(link, step=480)
    table.lost(link)
    hand.turn(901.0, table.tick)
    assert restarted(table, table_of, two_gpus).greet(object(), table.OTHER).last_step == 480


def kept() -> bytes:
    return saved_totals.encode(SavedTotals(saved_totals.VERSION, boot_id(), [], []))


def test_the_file_is_private_and_replaced_whole(tmp_path: Path) -> None:
    """Only its owner can read it, and a torn one that was left behind does no harm."""
    file = StateFile(tmp_path / "rank.state")
    (tmp_path / "rank.state.new").write_text("torn")
    assert file.load() is None
    file.save(kept())
    file.save(kept())
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.load() == SavedTotals(saved_totals.VERSION, boot_id(), [], [])
    assert [path.name for path in tmp_path.iterdir()] == ["rank.state"]


def spoilt(path: Path, how: str) -> None:
    if how == "link":
        (path.parent / "target").write_bytes(kept())
        path.symlink_to(path.parent / "target")
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "huge":
        path.write_bytes(b" " * (MAX_BYTES + 1))
    elif how == "deep":
        path.write_bytes(b'{"version":1,"boot":"","runs":' + b"[" * 100_000)
    elif how == "another's":
        path.write_bytes(kept())
        os.chown(path, 12345, 12345)
    elif how == "wrong type":
        path.write_bytes(kept().replace(b'"runs":[]', b'"runs":{"run":7}'))
    else:
        path.write_bytes(os.urandom(200))


@pytest.mark.parametrize("how", ["link", "pipe", "folder", "huge", "deep", "another's", "wrong type", "noise"])
def test_what_cannot_be_trusted_is_not_used(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged in one line, and the exporter starts without a memory."""
    if how == "another's" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = tmp_path / "rank.state"
    spoilt(path, how)
    assert StateFile(path).load() is None
    assert [record.message.partition(":")[0] for record in caplog.records] == ["state file not read"]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """In a folder that others may write to, a link under the name of the new file must not lead ours elsewhere."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "rank.state.new").symlink_to(victim)
    StateFile(tmp_path / "rank.state").save(kept())
    assert victim.read_text() == "precious"


def test_what_many_users_ranks_have_left_costs_nobody_the_sums(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One person can have many uids: where all that is remembered is too long, forgotten ranks are left out."""
    table.greet(mine := object(), table.ME, run="mine")
    table.tell(mine, seq=1, metrics={"lost_seconds_total": {"data": 7.0}})
    for uid in range(2000, 2064):
        for rank in range(512):
            table._earlier.remember(uid, "x" * 180, rank, EarlierProcess(1, 1.0, 0, finished=True))
    assert len(saved_totals.encode(table.saved(""))) > MAX_BYTES

    async def body() -> None:
        await StateKeeper(table, StateFile(tmp_path / "rank.state"))._save()

    asyncio.run(body())
    memory = StateFile(tmp_path / "rank.state").load()
    assert memory is not None
    assert memory.runs[0].totals["lost_seconds_total"]["data"] == 7.0
    assert memory.lives == []


def test_a_disk_that_hung_is_written_again(table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that ends after it was given up does not pass for one of what was said since."""
    monkeypatch.setattr("tachograph.node.ranks.state_keeper.PATIENCE_SECONDS", 0.05)
    answers = threading.Event()

    class Disk(StateFile):
        def save(self, data: bytes) -> None:
            assert answers.wait(60)
            super().save(data)

    async def body() -> None:
        keeper = StateKeeper(table, file := Disk(tmp_path / "rank.state"))
        await keeper._save()
        table.greet(object(), table.ME, run="later")
        await keeper._save()
        answers.set()
        assert keeper._writing is not None
        await keeper._writing
        await keeper._save()
        memory = file.load()
        assert memory is not None
        assert [run.run for run in memory.runs] == ["later"]

    asyncio.run(body())
