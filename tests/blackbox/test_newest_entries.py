"""A ring shortened to its newest entries before it is read: the same entries, and none that is not done is lost."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from tachograph.blackbox import plain_pickle
from tachograph.blackbox.folder import parse
from tachograph.blackbox.newest_entries import WORTH_IT, shortened


def dump(count: int, not_done: frozenset[int] = frozenset(), shared: bool = True) -> dict[str, Any]:
    """Return a recorder with so many entries, whose texts come up one after the other."""
    frames = [{"name": f"f{number}", "filename": f"/home/u/{'X' * (number % 7)}train{number}.py", "line": number * 0x58}
              for number in range(40)]  # fmt: skip
    entries = [
        {
            "record_id": 0x58585858 + number, "pg_id": number % 5, "process_group": (f"{number % 300}", "TP"),
            "collective_seq_id": number, "profiling_name": f"nccl:all_reduce{number // 50}",
            "time_created_ns": 0x5858585800000000 + number, "retired": number not in not_done,
            "frames": [frames[(number + depth) % 40] if shared else dict(frames[(number + depth) % 40])
                       for depth in range(9)],
        }
        for number in range(count)
    ]  # fmt: skip
    return {"version": "2.9", "entries": entries, "pg_status": {"0": {"last_enqueued_collective": count}}}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
def test_the_newest_entries_are_the_same(protocol: int, shared: bool) -> None:
    """What is read are the newest entries to the letter; whatever cannot be shortened is read whole."""
    whole = dump(2500, shared=shared)
    value, fault = parse(pickle.dumps(whole, protocol), 200)
    assert fault is None
    assert isinstance(value, dict)
    assert value["pg_status"] == whole["pg_status"]
    assert [list(each) for each in value["entries"][-200:]] == [list(each) for each in whole["entries"][-200:]]
    assert value["entries"][-200:] == whole["entries"][-200:]


def test_it_is_shorter() -> None:
    """A ring in which texts are written once, as PyTorch does, is read in part: the first entry and the newest."""
    data = pickle.dumps(dump(2500, shared=False), 2)
    assert len(data) > WORTH_IT
    short = shortened(data, 200)
    assert len(short) < len(data) / 4
    entries = plain_pickle.load(short)["entries"]  # type: ignore[index]
    assert [each["record_id"] - 0x58585858 for each in entries] == [0, *range(2300, 2500)]


@pytest.mark.parametrize("at", [1, 700, 2299])
def test_what_is_not_done_is_kept(at: int) -> None:
    """An entry that is not done stands among the kept ones, however old it is."""
    value, _ = parse(pickle.dumps(dump(2500, frozenset((at,)), shared=False), 2), 200)
    assert at in [each["record_id"] - 0x58585858 for each in value["entries"]]  # type: ignore[index]


def test_short_or_strange_files_are_left_alone() -> None:
    """A short file, another kind, and one without the keys come back as they are."""
    for data in (pickle.dumps(dump(10), 2), b"", b"X" * (WORTH_IT + 1), pickle.dumps(["x" * 400_000], 2)):
        assert shortened(data, 1) is data


def test_changed_at_random() -> None:
    """A damaged file is read, in part or not at all; it raises nothing."""
    data = pickle.dumps(dump(1200, shared=False), 2)
    assert len(data) > WORTH_IT
    chance = random.Random(7)
    for _ in range(40):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 3, 200))):
            changed[chance.randrange(len(data))] = chance.randrange(256)
        parse(bytes(changed[: chance.choice((len(data), chance.randrange(len(data))))]), 200)
