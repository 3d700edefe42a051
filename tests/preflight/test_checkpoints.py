"""The checkpoint folder: written, measured, and left as it was; what is wrong with it is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.preflight import checkpoint_folder, folder_probe
from tachograph.preflight.mounts import mount_of
from tachograph.preflight.site import PreflightSite

MakeSite = Callable[..., PreflightSite]
GIB = 2**30
GOOD = {
    "problem": "", "detail": "", "kind": "lustre", "source": "x", "free": 100 * GIB, "inodes": 10**9, "write": 2e9,
    "read": 4e9,
}  # fmt: skip


def conclude(site: PreflightSite, *nodes: dict[str, Any]) -> list[tuple[str, str]]:
    facts = {4 * number: {**GOOD, **one} for number, one in enumerate(nodes)} | {1: {}}
    return [(one.severity, one.what) for one in checkpoint_folder.conclude(facts, site).findings]


def test_a_folder_is_written_and_left_as_it_was(tmp_path: Path) -> None:
    """With both speeds, and the filesystem that it is on."""
    (tmp_path / "old.pt").write_bytes(b"x")
    found = folder_probe.probe(str(tmp_path), 20 * 2**20)
    assert (found["problem"], list(tmp_path.iterdir())) == ("", [tmp_path / "old.pt"])
    assert found["write"] > 0
    assert found["read"] > 0
    mount = mount_of(str(tmp_path))
    assert mount is not None
    assert (found["kind"], found["mount"]) == (mount.kind, mount.point)
    assert tmp_path.is_relative_to(mount.point)


def test_what_is_no_folder_to_write_to(tmp_path: Path) -> None:
    """Missing, a file, of a mount that is read-only, and a device that is always full."""
    (tmp_path / "file").touch()
    assert folder_probe.probe(str(tmp_path / "none"), 1)["problem"] == "missing"
    assert folder_probe.probe(str(tmp_path / "file"), 1)["problem"] == "not_a_folder"
    assert folder_probe.probe(str(tmp_path / "file/in"), 1)["problem"] == "not_a_folder"
    assert folder_probe.probe("/proc/self", 1)["problem"] in ("missing", "permission", "error")


def test_a_file_limit_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails in the middle: the probe is removed."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert folder_probe.probe(str(tmp_path), 100)["problem"] == "full"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("one", "what"),
    [
        ({"problem": "read_only"}, "/c is read-only on node b"),
        ({"problem": "missing"}, "/c does not exist on node b"),
        ({"problem": "late"}, "/c does not answer on node b"),
        ({"problem": "full", "free": 4096}, "/c is full: 4,096 bytes free on node b"),
        ({"free": 2**20, "write": None}, "/c is full: 1,048,576 bytes free on node b"),
        ({"problem": "error", "detail": "Input/output error"}, "/c cannot be used: Input/output error on node b"),
        ({"kind": "ext4"}, "/c is on ext4 on node b, elsewhere on lustre"),
        ({"inodes": 5}, "/c has 5 inodes left on node b"),
        ({"write": 0.8e9}, "node b writes to /c at 40% of the others' speed"),
        ({"read": 0.4e9}, "node b reads from /c at 10% of the others' speed"),
    ],
)
def test_a_node_where_it_is_wrong_is_named(site: MakeSite, one: dict[str, Any], what: str) -> None:
    """Two other nodes are in order."""
    found = conclude(site(12, checkpoint_dir="/c"), {}, one, {})
    assert [text for _, text in found] == [what]


def test_a_folder_that_no_node_has_is_said_once(site: MakeSite) -> None:
    """Though the size of a checkpoint is known, and so how long one would take."""
    missing = {"problem": "missing"}
    found = conclude(site(8, checkpoint_dir="/c", parameters=7e9), missing, missing)
    assert found == [("fail", "/c does not exist on every node")]


def test_room_is_needed_for_all_checkpoints_kept(site: MakeSite) -> None:
    """Of the size given, or of the model's weights and optimizer states: 14 bytes a parameter."""
    text = "/c has room for 1 of 2 checkpoints: 100.0 GiB free, each takes {} GiB"
    assert conclude(site(4, checkpoint_dir="/c", checkpoint_size=60 * GIB), {}) == [("fail", text.format("60.0"))]
    assert conclude(site(4, checkpoint_dir="/c", parameters=7e9), {}) == [("fail", text.format("91.3"))]
    assert conclude(site(4, checkpoint_dir="/c", parameters=7e9, keep=1), {}) == []


def test_a_speed_that_a_run_cannot_live_with(site: MakeSite) -> None:
    """A save that takes longer than collectives wait; where its size is not known, less than any disk writes."""
    slow = {"write": 2e6}
    large = site(8, checkpoint_dir="/c", checkpoint_size=40 * GIB)
    assert conclude(large, slow, slow) == [
        ("warn", "every node takes 2 h 58 min for its share of a checkpoint of 40.0 GiB, at 2 MB/s to /c")
    ]
    assert conclude(site(4, checkpoint_dir="/c"), slow) == [("warn", "node a writes to /c at 2 MB/s")]
    assert conclude(site(4, checkpoint_dir="/c", checkpoint_size=GIB), slow) == []


def test_a_probe_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its file has no name while it is written."""
    code = (
        "import os, signal; from tachograph.preflight import folder_probe as probe\n"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"probe.probe({str(tmp_path)!r}, 1000)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert (ended.returncode, list(tmp_path.iterdir())) == (-9, [])


def test_every_node_is_said_once(site: MakeSite) -> None:
    """A shared folder that is read-only is one thing that is wrong."""
    wrong = {"problem": "read_only"}
    assert conclude(site(12, checkpoint_dir="/c"), wrong, wrong, wrong) == [("fail", "/c is read-only on every node")]
