"""Dumps that were changed at random: whatever is in a file, the command says something and raises nothing."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from copy import deepcopy
from pathlib import Path

import pytest

from tachograph.blackbox import text
from tachograph.blackbox.findings import Verdict
from tachograph.blackbox.verdict import analyze
from tests.blackbox.made_job import Call, Job, Stuck, as_json

REAL = Path(__file__).parent / "flight_recorder"
ODD = (None, -1, 0, 1 << 70, 1.5, float("nan"), "", "x" * 300, [], {}, [[]], True, b"\xff", "[0, 1]", (1, "a"))


def _sources() -> list[bytes]:
    """Return files of every format, of a job with collectives and with sends."""
    groups = {"0": [0, 1, 2], "1": [0, 1], "p": [0, 1, 2]}
    programs: dict[int, list[Call | Stuck]] = {
        rank: [
            *[Call("0"), *([Call("1")] if rank < 2 else [])] * 3,
            Call("p", "send", peer=(rank + 1) % 3, blocks=False),
            Stuck() if rank == 1 else Call("0"),
        ]
        for rank in range(3)
    }
    made = []
    for backend in ("nccl", "nccl2", "gloo"):
        job = Job(groups, programs, backend).play()
        for rank in range(3):
            made += [pickle.dumps(job.dump(rank), protocol=protocol) for protocol in (0, 2, 5)]
            made.append(as_json(job.dump(rank)))
    return made + [path.read_bytes() for path in sorted(REAL.rglob("_dump_*"))]


def _mutated(data: bytes, chance: random.Random) -> bytes:
    kind = chance.randrange(4)
    if kind == 0:
        return data[: chance.randrange(len(data))]
    if kind == 1:
        value = json.loads(data) if data[:1] == b"{" else pickle.loads(data)  # ours, as they were
        _change(value, chance)
        try:
            return json.dumps(value).encode() if chance.random() < 0.5 else pickle.dumps(value)
        except TypeError:
            return pickle.dumps(value)
    changed = bytearray(data)
    for _ in range(chance.choice((1, 2, 8, 64))):
        at = chance.randrange(len(changed))
        if kind == 2:
            changed[at] = chance.randrange(256)
        else:
            changed[at : at + chance.randrange(1, 40)] = chance.randbytes(chance.randrange(20))
            changed = changed or bytearray(b"x")
    return bytes(changed)


def _change(value: object, chance: random.Random) -> None:
    """Put odd values into a random place, keys and lists included."""
    for _ in range(chance.randrange(1, 6)):
        at = value
        while isinstance(at, (dict, list)) and at:
            key = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at))
            inner = at[key]
            if not isinstance(inner, (dict, list)) or not inner or chance.random() < 0.2:
                at[key] = deepcopy(chance.choice(ODD))
                break
            at = inner


def _analyze_mutated(folder: Path, rounds: int, seed: int) -> list[Verdict]:
    chance = random.Random(seed)
    sources = _sources()
    found = []
    for _ in range(rounds):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for rank in range(4):
            data = chance.choice(sources)
            (folder / f"_dump_{rank}").write_bytes(_mutated(data, chance) if chance.random() < 0.7 else data)
        found.append(analyze(folder))
        assert text.lines(found[-1], 80)
    return found


def test_nothing_raises(tmp_path: Path) -> None:
    """A file that was changed at random costs that file alone."""
    found = _analyze_mutated(tmp_path / "dumps", 60, 2)
    assert {verdict.state for verdict in found} > {"stuck"}
    assert any(verdict.damaged for verdict in found)


@pytest.mark.slow
def test_nothing_raises_in_5000_files(tmp_path: Path) -> None:
    """The same with 5,000 files."""
    _analyze_mutated(tmp_path / "dumps", 5000 // 4, 2)
