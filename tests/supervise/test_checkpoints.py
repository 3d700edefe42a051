"""Checkpoints as they were saved: what is gone, half deleted or damaged is named, and nothing is restarted into it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tachograph.processes.own_process import own_process
from tachograph.supervise import checkpoint_files, history, known_checkpoints
from tachograph.supervise.checkpoint_memory import CheckpointMemory
from tachograph.supervise.run_seen import CheckpointSeen, RunSeen
from tests.supervise.conftest import until
from tests.supervise.world import BEGIN, World, dead, run

NOBODY = 65534


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of two files, one of them in a folder."""
    return save(tmp_path / "checkpoints" / "40")


def save(path: Path) -> Path:
    (path / "model").mkdir(parents=True)
    (path / "model" / "0.pt").write_bytes(b"weights")
    (path / "random.pt").write_bytes(b"state")
    return path


def keep_checksums(path: Path) -> None:
    files = [each for each in sorted(path.rglob("*")) if each.is_file()]
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.relative_to(path)}\n" for each in files]
    (path / checkpoint_files.CHECKSUMS).write_text("".join(lines))


def ask(what: str, path: Path, listing: Path, *more: str) -> str:
    """Return what the process says."""
    command = own_process("tachograph.supervise.checkpoint_files", what, str(path), str(listing), *more)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)
    return done.stdout.strip()


def fault_for_nobody(path: Path, listing: Path) -> str:
    """Return what is wrong with a checkpoint for a user who owns nothing."""
    heard, said = os.pipe()
    if (child := os.fork()) == 0:
        os.setuid(NOBODY)
        os.write(said, checkpoint_files.fault(path, listing, 10.0).encode())
        os._exit(0)
    os.close(said)
    with os.fdopen(heard) as text:
        found = text.read()
    assert os.waitpid(child, 0)[1] == 0
    return found


Damage = Callable[[Path], object]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "nothing": (lambda path: None, ""),
    "one more file": (lambda path: (path / "done").touch(), ""),
    "touched": (lambda path: os.utime(path / "random.pt", (1, 1)), ""),
    "gone": (shutil.rmtree, "40 is gone"),
    "half deleted": (lambda path: shutil.rmtree(path / "model"), "0.pt is gone (missing: 1 of 2 files)"),
    "cut": (lambda path: (path / "random.pt").write_bytes(b"s"), "random.pt has 1 bytes, and had 5 when it was saved"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_not_as_it_was_saved(saved: Path, tmp_path: Path, name: str) -> None:
    """Each file by its name and size; what came on top does no harm."""
    listing = tmp_path / "listing"
    ask("list", saved, listing)
    damage, said = DAMAGES[name]
    damage(saved)
    found = ask("check", saved, listing, "10")
    assert said in found if said else found == ""


def test_a_bit_that_flipped(saved: Path, tmp_path: Path) -> None:
    """Where the loop keeps SHA256SUMS, each file is read back; what is beyond the time for that counts by its size."""
    keep_checksums(saved)
    listing = tmp_path / "listing"
    ask("list", saved, listing)
    assert ask("check", saved, listing, "10") == ""
    (saved / "random.pt").write_bytes(b"spate")
    assert "random.pt is damaged: it does not have the checksum" in ask("check", saved, listing, "10")
    assert ask("check", saved, listing, "0") == ""
    assert subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=saved, check=False).returncode == 1


@pytest.mark.parametrize("command", [
    "sha256sum * > SHA256SUMS; sha256sum * > SHA256SUMS",  # the second time with a line of the first one's file
    "(echo '# of save.py'; sha256sum *; echo) > SHA256SUMS",
    "sha256sum --binary * | sed -E 's/^[0-9a-f]+/\\U&/; s/$/\\r/' > SHA256SUMS",
    "sha256sum --tag * > SHA256SUMS",
    "echo of a step > 'a\\b'; sha256sum ./* > SHA256SUMS",
])  # fmt: skip
def test_checksums_of_every_form(saved: Path, tmp_path: Path, command: str) -> None:
    """Lines that sha256sum passes over, or writes in another form, make no good checkpoint a damaged one."""
    subprocess.run(command, shell=True, cwd=saved, check=False)  # it passes over folders, and says so
    assert checkpoint_files.fault(saved, tmp_path / "no-listing", 10.0) == ""
    (saved / "random.pt").write_bytes(b"spate")
    assert "random.pt is damaged" in checkpoint_files.fault(saved, tmp_path / "no-listing", 10.0)


def test_a_checkpoint_that_is_one_file(tmp_path: Path) -> None:
    """By its size."""
    path, listing = tmp_path / "last.ckpt", tmp_path / "listing"
    path.write_bytes(b"weights")
    ask("list", path, listing)
    assert ask("check", path, listing, "10") == ""
    path.write_bytes(b"")
    assert "has 0 bytes, and had 7" in ask("check", path, listing, "10")


def test_a_pipe_in_a_checkpoint_is_not_waited_for(saved: Path, tmp_path: Path) -> None:
    """Nor one in the place of its checksums."""
    os.mkfifo(saved / "control")
    os.mkfifo(saved / checkpoint_files.CHECKSUMS)
    listing = tmp_path / "listing"
    ask("list", saved, listing)
    assert ask("check", saved, listing, "10") == ""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may be another user")
def test_a_folder_that_cannot_be_written_or_read() -> None:
    """The next checkpoint could not be saved there, or this one not loaded."""
    with TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        _written_and_read(Path(open_to_all))


def _written_and_read(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints" / "40")
    listing = tmp_path / "listing"
    ask("list", path, listing)
    listing.chmod(0o644)
    assert "checkpoints cannot be written to" in fault_for_nobody(path, listing)
    path.parent.chmod(0o777)
    assert fault_for_nobody(path, listing) == ""
    (path / "random.pt").chmod(0o600)
    assert "random.pt: Permission denied" in fault_for_nobody(path, listing)


def test_what_was_never_visible_from_here_is_taken_on_trust(tmp_path: Path) -> None:
    """A key in an object store, or another node's disk."""
    assert ask("check", Path("s3://bucket/40"), tmp_path / "none", "10") == ""


def world(folder: Path, *paths: Path, damage: Callable[[], object], ends: int = 1) -> World:
    """A run that saves at these paths, dies once what is there is listed and damaged, and goes on."""
    saves = tuple(CheckpointSeen(int(path.name), BEGIN + float(path.name), str(path)) for path in paths)
    state = folder / "state"

    def look(attempt: int, seconds: float) -> RunSeen:
        if seconds >= 20 and attempt < ends:
            return replace(dead(50), checkpoints=saves)
        return run(checkpoints=saves)

    def wait(played: World) -> None:
        listings = [state / known_checkpoints.FOLDER / f"{path.name}.json" for path in paths]
        if played.now - played.began >= 15 and len(played.children) == 1 and "damaged" not in played.did:
            until(lambda: all(each.exists() for each in listings))
            damage()
            played.did.append("damaged")

    return World(state, look, ends=[(1, 21.0)] * ends + [(0, 30.0)], on_wait=wait)


def test_the_newest_that_is_whole_is_restarted_from(tmp_path: Path) -> None:
    """The plan names its step and its path, and what is said names the file that is missing in the newer one."""
    older, newer = save(tmp_path / "c" / "20"), save(tmp_path / "c" / "40")
    played = world(tmp_path, older, newer, damage=(newer / "random.pt").unlink)
    assert played.supervise() == 0
    assert played.decisions() == [("act", "dead", "restart")]
    assert played.plans[1]["TACHOGRAPH_PLAN_STEP"] == "20"
    assert played.plans[1]["TACHOGRAPH_PLAN_CHECKPOINT"] == str(older)
    assert f"from the checkpoint of step 20 (not that of step 40: {newer / 'random.pt'} is gone" in played.said[0]
    assert history.lines(played.entries[:-1], 0.0)[-1] == "checkpoints: newest good one of step 20"


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    """It is as good as another one: what is said has signs in place of what cannot be shown."""
    older, newer = save(tmp_path / "c" / "20"), save(tmp_path / "c" / "40")
    odd = newer / os.fsdecode(b"\xff\xfe\n")
    odd.write_bytes(b"weights")
    played = world(tmp_path, older, newer, damage=odd.unlink)
    assert played.supervise() == 0
    assert played.plans[1]["TACHOGRAPH_PLAN_STEP"] == "20"
    assert f"from the checkpoint of step 20 (not that of step 40: {newer}/\ufffd\ufffd\n is gone" in played.said[0]
    assert not [one for one in played.entries if one["kind"] == "fault"]


def test_without_a_whole_one_a_person_is_asked(tmp_path: Path) -> None:
    """In act mode, too; nobody confirms it, and nothing is started."""
    path = save(tmp_path / "c" / "40")
    played = world(tmp_path, path, damage=lambda: shutil.rmtree(path))
    played.last = 4000.0
    assert played.supervise() == 1
    assert played.did == ["started", "damaged"]
    assert played.decisions() == [("asked", "dead", "restart")]
    assert f"but no checkpoint can be restored: that of step 40: {path} is gone" in played.said[0]


def test_good_ones_are_remembered_while_the_loss_is_in_trouble() -> None:
    """However many are saved meanwhile; the journal is read again by the next supervisor."""
    memory = CheckpointMemory()
    for step in range(40):
        memory.take({"kind": "checkpoint", "checkpoint": step, "saved": float(step), "path": "", "suspect": step > 9})
    assert [step for step, entry in memory.by_step.items() if not entry["suspect"]] == [*range(3, 10)]
    assert len(memory.by_step) == 8


def test_a_file_system_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not answer in time is passed over, and not waited for."""
    path = save(tmp_path / "c" / "40")
    played = world(tmp_path, path, damage=lambda: monkeypatch.setattr(known_checkpoints, "own_process", hangs))
    played.last = 4000.0
    monkeypatch.setattr(known_checkpoints, "CHECK_SECONDS", 1.0)
    assert played.supervise() == 1
    assert f"{path} does not answer within 1 s" in played.said[0]


def hangs(*_: str) -> list[str]:
    return ["sleep", "60"]
