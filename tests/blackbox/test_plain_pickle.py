"""Pickles that want more than plain values: nothing of them is executed, and they cost their own file alone."""

from __future__ import annotations

import collections
import io
import pickle
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tachograph.blackbox import plain_pickle
from tachograph.blackbox.verdict import analyze
from tests.blackbox.made_job import Call, Job, Stuck

WITNESS = "witness"


class _Runs:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self._path,))


def _malicious(witness: Path) -> dict[str, bytes]:
    path = str(witness).encode()
    call = b"cposix\nsystem\n(X" + struct.pack("<I", len(path) + 6) + b"touch " + path + b"tR"
    plain = pickle.dumps({"entries": [], "pg_status": {}}, protocol=2)
    return {
        **{f"reduce-{number}": pickle.dumps({"entries": [_Runs(witness)]}, number) for number in range(6)},
        "system": call + b".",
        "in-a-list": b"\x80\x02]" + call + b"a.",
        "inst": b"(S'touch " + path + b"'\niposix\nsystem\n.",
        "obj": b"(cposix\nsystem\nX" + struct.pack("<I", len(path) + 6) + b"touch " + path + b"o.",
        "stack-global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c"
        + bytes([len(path) + 6])
        + b"touch "
        + path
        + b"\x85R.",
        "after-the-end": plain + call + b".",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "class": pickle.dumps(collections.OrderedDict(entries=[])),
        "long-text-before": b"\x80\x02X" + struct.pack("<I", 5000) + b"x" * 5000 + call + b".",
    }


def test_every_one_of_them_runs_in_a_usual_unpickler(tmp_path: Path) -> None:
    """The files are what they claim to be: most of them create the witness if they are unpickled."""
    ran = []
    for name, data in _malicious(tmp_path / WITNESS).items():
        with suppress(pickle.UnpicklingError, ValueError):
            pickle.loads(data)
        if (tmp_path / WITNESS).exists():
            (tmp_path / WITNESS).unlink()
            ran.append(name)
    assert len(ran) > 10


@pytest.mark.parametrize("name", list(_malicious(Path(WITNESS))))
def test_nothing_is_executed(name: str, tmp_path: Path) -> None:
    """The culprit is found from the other files, and the malicious one is named as refused or damaged."""
    folder = tmp_path / "dumps"
    programs = {rank: [Call("0")] * 3 + ([Stuck()] if rank == 2 else [Call("0")]) for rank in range(4)}
    Job({"0": range(4)}, programs).play().write(folder)
    (folder / "_dump_4").write_bytes(_malicious(tmp_path / WITNESS)[name])
    verdict = analyze(folder)
    assert not (tmp_path / WITNESS).exists()
    assert [one.rank for one in verdict.culprits] == [2]
    assert list(verdict.damaged) == ([] if name == "after-the-end" else ["_dump_4"])


@pytest.mark.parametrize("name", [one for one in _malicious(Path(WITNESS)) if one != "after-the-end"])
def test_both_defences_refuse_it(name: str, tmp_path: Path) -> None:
    """The check of opcodes refuses it before anything is built, and the unpickler would find nothing to call."""
    data = _malicious(tmp_path / WITNESS)[name]
    with pytest.raises(plain_pickle.NotPlainError, match="more than plain values"):
        plain_pickle.load(data)
    with pytest.raises((plain_pickle.NotPlainError, ValueError, pickle.UnpicklingError)):
        plain_pickle._PlainUnpickler(io.BytesIO(data)).load()
    assert not (tmp_path / WITNESS).exists()


@pytest.mark.parametrize("index", [1 << 20, 1 << 31, (1 << 32) - 1])
def test_a_memo_index_allocates_nothing(index: int) -> None:
    """An index of a few bytes makes the usual unpickler allocate 16 bytes for each one below it."""
    with pytest.raises(plain_pickle.NotPlainError, match="memo"):
        plain_pickle.load(b"\x80\x02Nr" + struct.pack("<I", index) + b".")
    with pytest.raises(plain_pickle.NotPlainError, match="memo"):
        plain_pickle.load(b"Np%d\n." % index)


DEEP = 200_000


def _deep() -> dict[str, bytes]:
    """Return pickles in which a key, or what may become one, is nested deep, built at once or by memo."""
    step = b"r\xff\xff\x00\x00" + b"0j\xff\xff\x00\x00\x85"
    entry = b"\x80\x02}X\x07\x00\x00\x00entries]}X\x0b\x00\x00\x00input_sizes]](%saaas."
    return {
        "one": b"\x80\x02}" + b")" + b"\x85" * DEEP + b"Ns.",
        "two": b"\x80\x02}" + b")" + b"N\x86" * DEEP + b"Ns.",
        "three": b"\x80\x02}" + b")" + b"NN\x87" * DEEP + b"Ns.",
        "marks": b"\x80\x02}" + b"(" * DEEP + b"t" * DEEP + b"Ns.",
        "memo that is written over": b"\x80\x02}N" + step * DEEP + b"Ns.",
        "memo after a drop": b"\x80\x02}N" + b"N0r\xff\xff\x00\x000j\xff\xff\x00\x00\x85" * DEEP + b"Ns.",
        "items": b"\x80\x02}(" + b")" + b"\x85" * DEEP + b"Nu.",
        "dict": b"\x80\x02(" + b")" + b"\x85" * DEEP + b"Nd.",
        "protocol 0": b"(d" + b"(" * DEEP + b"t" * DEEP + b"Ns.",
        "value": b"\x80\x02}X\x01\x00\x00\x00a)" + b"\x85" * DEEP + b"s.",
        "doubled by memo": b"\x80\x02}N" + b"".join(b"q%ch%ch%c\x86" % (n, n, n) for n in range(60)) + b"Ns.",
        "long": b"\x80\x02}(" + b"N" * 300 + b"tNs.",
        "size": entry % (b")" + b"\x85" * DEEP + b"t"),
    }


@pytest.mark.parametrize("name", list(_deep()))
def test_deep_tuples_are_refused(name: str, tmp_path: Path) -> None:
    """A tuple of many levels, whose hash would end the process, is refused, also in a file that is cut short."""
    data = _deep()[name]
    with pytest.raises(plain_pickle.NotPlainError, match="nested too deep"):
        plain_pickle.load(data)
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "rank0").write_bytes(data)
    (folder / "rank1").write_bytes(data[:-1])
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "blackbox", "analyze", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done
    assert "nested too deep" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("opened", [b"]", b"}N", b"(", b"]X\x01\x00\x00\x00a"])
@pytest.mark.parametrize("end", [b"", b".", b"a" * 50_000])
def test_deep_lists_and_dicts_end_nothing(opened: bytes, end: bytes, tmp_path: Path) -> None:
    """Lists, dicts and marks of any number, whole or cut short, are read in time that grows with the file."""
    (tmp_path / "rank0").write_bytes(b"\x80\x02" + opened * 100_000 + end)
    assert analyze(tmp_path).state == "unreadable"


def test_a_deep_value_in_any_place_ends_nothing(tmp_path: Path) -> None:
    """Whichever value of a dump is a list of twenty thousand levels, the file is read without an exception."""
    word = "instead of this"
    written = b"X" + struct.pack("<I", len(word)) + word.encode()
    for number, path in enumerate(_places(Job({"0": range(2)}, {0: [Call("0")], 1: [Stuck()]}).play().dump(0))):
        dump: Any = Job({"0": range(2)}, {0: [Call("0")], 1: [Stuck()]}).play().dump(0)
        inner = dump
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = word
        data = re.sub(re.escape(written) + b"q.|" + re.escape(written) + b"r....", written, pickle.dumps(dump, 2))
        folder = tmp_path / str(number)
        folder.mkdir()
        assert data.count(written) == 1
        (folder / "rank0").write_bytes(data.replace(written, b"]" * 20_000 + b"a" * 19_999))
        assert analyze(folder).directory == str(folder), path


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value that is not in a tuple, containers included."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _places(value[key], (*path, key))


def test_the_quick_check_lets_no_nested_tuple_pass() -> None:
    """Whatever opcodes stand in a file, those that pass without being followed one by one nest no tuples."""
    chance = random.Random(7)
    pieces = (
        b"N", b"h\x00", b"K\x85", b"X\x01\x00\x00\x00a", b"q\x00", b"\x94", b"\x85", b"\x86", b"\x87", b")", b"]",
        b"}", b"(", b"e", b"u", b"a", b"s", b"l", b"d", b"0", b"\x80\x02", b"\x95" + b"\0" * 8, b"h\x00h\x00\x86",
    )  # fmt: skip
    passed = 0
    for _ in range(80_000):
        opcodes = b"".join(chance.choices(pieces, k=chance.randrange(3, 14)))
        held = plain_pickle._Held()
        try:
            for opcode, argument in plain_pickle._opcodes(opcodes + b"."):
                held.step(opcode, argument)
        except (LookupError, ValueError):
            continue  # the unpickler stops there too
        if plain_pickle._is_common(opcodes):
            passed += 1
            assert max((*held.values, *held.memo.values()), default=0) <= 4, opcodes
    assert passed > 500


VALUE = {"a": [1, -2, 1 << 40, 2.5, None, True, False, "x" * 300, ("t", ("u",)), {}, [], b"b", "\u20ac"], "b": {1: 2}}


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_are_read(protocol: int) -> None:
    """Every protocol's plain values are what they were; bytes are plain from protocol 3 on."""
    value = {"a": [one for one in VALUE["a"] if protocol > 2 or not isinstance(one, bytes)], "b": VALUE["b"]}
    assert plain_pickle.load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(1, 6))
def test_what_stands_before_the_cut_is_kept(protocol: int) -> None:
    """A pickle that was cut short keeps the values that were complete, wherever it was cut."""
    data = pickle.dumps({"first": {"1": 5}, "entries": [{"n": 1}, {"n": 2, "m": [3, 4]}]}, protocol)
    with pytest.raises(ValueError, match=r"cut short|damaged"):
        plain_pickle.load(data[:-8])
    found = [plain_pickle.salvage(data[:length]) for length in range(len(data))]
    assert {"first": {"1": 5}, "entries": [{"n": 1}, {"n": 2, "m": [3, 4]}]} in found
    assert {"first": {"1": 5}} in found or {"first": {"1": 5}, "entries": []} in found


def test_a_pickle_that_holds_itself(tmp_path: Path) -> None:
    """A value that holds itself ends the reading of nothing."""
    inner: dict[str, Any] = {"pg_status": {}}
    inner["entries"] = [inner]
    inner["pg_config"] = inner
    shutil.rmtree(tmp_path / "dumps", ignore_errors=True)
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "_dump_0").write_bytes(pickle.dumps(inner))
    assert analyze(tmp_path / "dumps").culprits == []
