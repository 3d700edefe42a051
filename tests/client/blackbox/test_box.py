"""A box: one JSON object that is never too long, whatever is in it."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tachograph.client.blackbox import box as module
from tachograph.client.blackbox import log_lines, recorded
from tachograph.client.blackbox.box import PART_BYTES, make_box
from tachograph.client.blackbox.environment import SHOWN, environment_summary
from tachograph.preflight.known_variables import DEPRECATED, KNOWN
from tachograph.wire import MAX_BOX_BYTES


def entry(number: int, **more: object) -> dict[str, object]:
    name = {"record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number}
    frames = [
        {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/c10d.py", "line": 1},
        {"name": "step", "filename": "/home/alice/train.py", "line": 7},
    ]
    return {**name, "profiling_name": "gloo:all_reduce", "frames": frames, "time_discovered_started_ns": None, **more}


def dump(entries: int, **more: object) -> dict[str, object]:
    status = {"0": {"last_enqueued_collective": entries, "last_completed_collective": entries}}
    return {"version": "2.10", "pg_status": status, "entries": [entry(n, **more) for n in range(entries)]}


@pytest.fixture
def training() -> Iterator[int]:
    """A thread that stands for the one that trains."""
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="training", daemon=True)
    thread.start()
    yield thread.ident or 0
    leave.set()
    thread.join(60)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, training: int) -> Any:
    """Makes a box with these dumps by recorder, and reads it."""

    def make(facts: dict[str, object] | None = None, **dumps: object) -> dict[str, Any]:
        monkeypatch.setattr(recorded, "recorders_in_use", lambda: tuple(dumps))
        monkeypatch.setattr(recorded, "spares_captures", lambda: True)

        def entries(recorder: str, *, lines: bool) -> object:
            if isinstance(dumps[recorder], Exception):
                raise dumps[recorder]  # type: ignore[misc]
            return dumps[recorder]

        monkeypatch.setattr(recorded, "entries", entries)
        text = make_box({"rank": 3, **(facts or {})}, training, with_lines=True)
        assert len(text) <= MAX_BOX_BYTES
        box: dict[str, Any] = json.loads(text.decode("ascii"))
        return box

    return make


def test_a_box_holds_what_was_asked_and_what_was_read(made: Any) -> None:
    """The facts, the stacks, memory, environment, log, and the recorders with the lines of the user's code alone."""
    log_lines.kept.clear()
    log_lines.kept.append('{"message":"epoch done","password":"hunter2"}')
    box = made({"loss": math.nan, "where": "data.py:88 load_shard"}, gloo=dump(3), nccl2=dump(1))
    log_lines.kept.clear()
    assert (box["rank"], box["loss"], box["where"]) == (3, "NaN", "data.py:88 load_shard")
    assert box["stacks"][0]["threads"] == ["training"]
    assert box["memory"]["resident_bytes"] > 1e6
    assert box["environment"]["python"]
    assert "epoch done" in box["log"][0]
    assert "hunter2" not in str(box)
    assert set(box["recorders"]) == {"gloo", "nccl2"}
    recorder = box["recorders"]["gloo"]
    assert [each["record_id"] for each in recorder["entries"]] == [0, 1, 2]
    assert recorder["entries"][0]["frames"] == [{"name": "step", "filename": "/home/alice/train.py", "line": 7}]
    assert "time_discovered_started_ns" not in recorder["entries"][0]
    assert "entries_cut" not in recorder
    assert recorder["pg_status"]["0"]["last_enqueued_collective"] == 3


def test_without_any_recorder(made: Any) -> None:
    """As of a program that does not use torch.distributed, or on a PyTorch that records nothing."""
    assert made()["recorders"] == {}


def test_too_many_entries_are_cut_oldest_first(made: Any) -> None:
    """The newest stay, of each recorder, and how many are gone is said; a small recorder is not cut for a large one."""
    box = made(nccl=dump(20_000), gloo=dump(5))
    large, small = box["recorders"]["nccl"], box["recorders"]["gloo"]
    assert len(small["entries"]) == 5
    kept = [each["record_id"] for each in large["entries"]]
    assert kept == list(range(20_000 - len(kept), 20_000))
    assert len(kept) > 500
    assert large["entries_cut"] == 20_000 - len(kept)
    one = made(gloo=dump(3, big="x" * MAX_BOX_BYTES))["recorders"]["gloo"]
    assert (one["entries"], one["entries_cut"], one["version"]) == ([], 3, "2.10")


def test_the_members_of_the_largest_groups_give_way(made: Any) -> None:
    """Of a run with too many ranks, the smaller groups keep theirs."""
    groups: dict[str, Any] = {"0": {"ranks": list(range(100_000)), "label": "0"}, "1": {"ranks": [1, 2], "label": "tp"}}
    found = made({"groups": groups})["groups"]
    assert found == {"0": {"members": 100_000, "label": "0"}, "1": {"ranks": [1, 2], "label": "tp"}}
    many = {str(number): {"ranks": [number], "label": "x" * 100} for number in range(10_000)}
    assert len(json.dumps(made({"groups": many})["groups"], separators=(",", ":"))) <= PART_BYTES + 2


def test_too_many_stacks_are_cut_and_that_is_said(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones stay: the training thread's is among them."""
    wide = [{"threads": [str(number)], "lines": ["x" * 1000]} for number in range(300)]
    monkeypatch.setattr(module, "stacks", lambda training: wide)
    found = made(gloo=dump(5_000))["stacks"]
    assert found[0] == wide[0]
    assert found[-1] == {"cut": 300 - (len(found) - 1)}


def test_a_part_that_cannot_be_read_costs_itself_only(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named in the box; a recorder that cannot be read costs no other."""
    monkeypatch.setattr(module, "environment_summary", lambda: 1 / 0)
    box = made(nccl=RuntimeError("hidden"), gloo=dump(1))
    assert box["unreadable"] == ["environment: ZeroDivisionError"]
    assert box["recorders"]["nccl"] == {"unreadable": "RuntimeError", "entries": []}
    assert len(box["recorders"]["gloo"]["entries"]) == 1


def test_a_variable_is_shown_by_its_whole_name_alone() -> None:
    """NCCL_AUTH is somebody's own, and no list of words has all that secrets are called."""
    secret = dict.fromkeys((
        "NCCL_AUTH", "TORCH_PWD", "TACHOGRAPH_X_PASS", "CUDA_PASSPHRASE", "NCCL_NET_AUTHTOKEN", "SLURM_JOB_COMMENT",
        "GLOO_X", "OMP_K", "TORCHELASTIC_SALT", "PYTORCH_PIN", "NCCL_DEBUG_", "xNCCL_DEBUG",
    ), "hunter2")  # fmt: skip
    known = {"NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "4711", "RANK": "3", "NCCL_IB_HCA": "mlx5_0:1", "TORCH_LOGS": ""}
    assert environment_summary({**secret, **known})["variables"] == known
    assert environment_summary({"MASTER_ADDR": "tcp://me:hunter2@h"})["variables"] == {
        "MASTER_ADDR": "tcp://[redacted]@h"
    }
    of_others = {name for name in SHOWN if name.startswith(("NCCL_", "TORCH", "CUDA_", "GLOO_", "OMP_", "PYTORCH_"))}
    assert of_others - {"NCCL_TIMEOUT"} <= KNOWN | DEPRECATED.keys()


def test_the_words_of_a_failure_are_redacted(made: Any) -> None:
    """Its message and the paths of its lines."""
    failure = {"category": "exception", "message": "no access with token=hunter2", "lines": ["/hf_aBcDeFgHiJ/x.py:1 f"]}
    box = made({"failure": failure})
    assert box["failure"]["message"] == "no access with token=[redacted]"
    assert box["failure"]["lines"] == ["/[redacted]/x.py:1 f"]
