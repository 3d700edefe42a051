"""A process that writes or computes is told from one that stands still."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from tachograph.client.signals import process_activity as module
from tachograph.client.signals.process_activity import ProcessActivity


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the kernel says that the process has written, 10 MB; it computes nothing."""
    path = tmp_path / "io"
    monkeypatch.setattr(module, "_COUNTERS", str(path))
    monkeypatch.setattr(module, "process_time", lambda: 5.0)

    def write(count: object, dirtied: int = 0) -> None:
        path.write_text(f"rchar: 77\nwchar: {count}\nsyscr: 9\nwrite_bytes: {dirtied}\ncancelled_write_bytes: 0\n")

    write(10_000_000)
    return write


def look(activity: ProcessActivity, until: float, since: float = 99.5) -> float:
    """What it says at the end of twenty looks, one a second, of a save that began at `since`."""
    return [activity.still_seconds(until - ago, since) for ago in range(20, -1, -1) if until - ago >= 100.0][-1]


def test_it_stands_still_until_it_has_written_a_mebibyte(written: Any) -> None:
    """Counted from when it was first looked at, and again from when it did."""
    activity = ProcessActivity()
    assert activity.still_seconds(100.0, since=99.5) == 0.0
    written(10_000_000 + 2**20 - 1)
    assert look(activity, 112.0) == 12.0
    written(10_000_000 + 2**20)
    assert activity.still_seconds(113.0, since=99.5) == 0.0
    assert look(activity, 120.0) == 7.0


def test_a_large_write_counts_before_it_is_over(written: Any) -> None:
    """The kernel counts a call when it returns, which a gigabyte on slow storage does after half a minute."""
    activity = ProcessActivity()
    look(activity, 110.0)
    written(10_000_000, dirtied=2**20)
    assert activity.still_seconds(111.0, since=99.5) == 0.0


def test_time_in_which_nobody_looked_does_not_count(written: Any) -> None:
    """A process that was stopped for a minute in a save has not stood still for a minute when it goes on."""
    activity = ProcessActivity()
    assert look(activity, 103.0) == 3.0
    assert activity.still_seconds(163.0, since=99.5) == 3.0 + module.MOST_APART
    assert activity.still_seconds(164.0, since=99.5) == 4.0 + module.MOST_APART


def test_counters_that_come_late_begin_then(written: Any) -> None:
    """As where the kernel lets one read them again."""
    activity = ProcessActivity()
    written("")
    activity.still_seconds(100.0, since=99.5)
    written(10_000_000)
    assert [activity.still_seconds(now, since=99.5) for now in (101.0, 102.0)] == [0.0, 1.0]


def test_a_second_of_computing_counts_as_well(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that compresses, or sends what it has mapped, writes little."""
    activity = ProcessActivity()
    activity.still_seconds(100.0, since=99.5)
    monkeypatch.setattr(module, "process_time", lambda: 5.9)
    assert look(activity, 110.0) == 10.0
    monkeypatch.setattr(module, "process_time", lambda: 6.0)
    assert activity.still_seconds(111.0, since=99.5) == 0.0


def test_another_save_is_another_matter(written: Any) -> None:
    """What was there before it began does not count."""
    activity = ProcessActivity()
    activity.still_seconds(100.0, since=99.5)
    assert activity.still_seconds(160.0, since=159.5) == 0.0


@pytest.mark.parametrize("says", ["", "many", "0", "-5"])
def test_a_kernel_that_does_not_say_leaves_it_open(written: Any, says: str) -> None:
    """0, and never an exception: no counters, none that can be read, or one that never counts."""
    activity = ProcessActivity()
    for now in (100.0, 130.0):
        written(says)
        assert activity.still_seconds(now, since=99.5) == 0.0


def test_without_the_file_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another system."""
    monkeypatch.setattr(module, "_COUNTERS", "/nowhere/io")
    activity = ProcessActivity()
    assert [activity.still_seconds(now, since=99.5) for now in (100.0, 130.0)] == [0.0, 0.0]


@pytest.fixture
def full_disk() -> Iterator[int]:
    """A file on a disk that is full."""
    file = os.open("/dev/full", os.O_WRONLY)
    yield file
    os.close(file)


def test_the_kernel_counts_what_was_written_and_no_attempt(full_disk: int, tmp_path: Path) -> None:
    """A writer that tries again and again on a full disk stands still; one that writes moves."""
    activity = ProcessActivity()
    with (tmp_path / "shard").open("wb") as file:
        file.write(bytes(4096))
        file.flush()
        assert activity.still_seconds(100.0, since=99.5) == 0.0
        computed = process_time()
        for _ in range(100):
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                os.write(full_disk, bytes(2**20))
        still = look(activity, 120.0)
        if process_time() - computed < module.COMPUTED_SECONDS:
            assert still == 20.0
        file.write(bytes(2**21))
        file.flush()
        assert activity.still_seconds(121.0, since=99.5) == 0.0
