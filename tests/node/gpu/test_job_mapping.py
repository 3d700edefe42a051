"""The job-mapping folder: what a scheduler writes is shown, and nothing written there can stall or flood a scrape."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.gpu.job_mapping import (
    MAX_FILE_BYTES,
    MAX_ID_LENGTH,
    MAX_JOBS,
    MIG_INSTANCES,
    READ_SECONDS,
    JobMapping,
)
from tachograph.node.samples import GpuIdentity

GPUS = (GpuIdentity("0", "GPU-aaaa", "H100"), GpuIdentity("1", "GPU-bbbb", "H100"))


class Folder:
    """A mapping folder and what is shown of it."""

    def __init__(self, path: Path, hand: Any) -> None:
        self.path, self.hand = path, hand
        self.mapping = JobMapping(path, hand.clock.monotonic)

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def shown(self) -> list[tuple[str, ...]]:
        """The jobs of a scrape after the folder was read again: (gpu, uuid, job)."""
        self.hand.turn(READ_SECONDS)
        samples = list(self.mapping.samples(GPUS))
        assert {(sample.metric.name, sample.value) for sample in samples} <= {("tachograph_gpu_job_info", 1)}
        return [sample.labels for sample in samples]

    def jobs(self) -> list[str]:
        return [labels[2] for labels in self.shown()]


@pytest.fixture
def folder(tmp_path: Path, hand: Any) -> Folder:
    path = tmp_path / "jobs"
    path.mkdir()
    return Folder(path, hand)


@pytest.fixture
def faults(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert record.levelno == logging.ERROR
            lines.append(record.getMessage())

    log = logging.getLogger("tachograph.node.gpu.job_mapping")
    log.addHandler(handler := Keep())
    yield lines
    log.removeHandler(handler)


def test_each_line_of_a_gpus_file_is_a_job(folder: Folder, faults: list[str]) -> None:
    """One series for each GPU and job, whoever wrote the line ends; an empty file or line is no job and no fault."""
    folder.write("0", "4711\n4712_9\n")
    folder.write("1", "\r\n 4711 \r\n\n4711")
    assert folder.shown() == [("0", "GPU-aaaa", "4711"), ("0", "GPU-aaaa", "4712_9"), ("1", "GPU-bbbb", "4711")]
    folder.write("0", "")
    assert folder.shown() == [("1", "GPU-bbbb", "4711")]
    assert faults == []


def test_jobs_of_mig_instances_are_their_gpus(folder: Folder) -> None:
    """A file of an instance counts once, for its GPU; one of an unknown GPU is ignored."""
    folder.write("0.7", "1\n")
    folder.write("0.13", "2\n1\n")
    folder.write("00", "3\n")
    folder.write("2", "4\n")
    folder.write("0.x", "5\n")
    assert folder.shown() == [("0", "GPU-aaaa", "1"), ("0", "GPU-aaaa", "2")]


def test_what_is_written_is_seen_in_seconds_and_not_at_once(folder: Folder) -> None:
    """The folder is looked at once in a while, and at once when the node's GPUs change."""
    assert folder.shown() == []
    folder.write("1", "8\n")
    assert list(folder.mapping.samples(GPUS)) == []
    folder.hand.turn(READ_SECONDS - 0.1)
    assert list(folder.mapping.samples(GPUS)) == []
    assert len(list(folder.mapping.samples(GPUS[1:]))) == 1
    folder.write("1", "9\n")
    assert folder.jobs() == ["9"]
    (folder.path / "1").unlink()
    assert folder.jobs() == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * (MAX_ID_LENGTH + 1), "over 128 characters"),
        (b"a\x1b[31mb", "characters that cannot be printed"),
        (b"a\x00b", "characters that cannot be printed"),
        ("a\u2028b".encode(), "characters that cannot be printed"),
    ],
)
def test_a_malformed_line_costs_itself(folder: Folder, faults: list[str], line: bytes, fault: str) -> None:
    """It is logged once, by file and line, and the other lines are read; broken again after a repair, logged again."""
    path = folder.write("0", b"1\n" + line + b"\n2\n")
    assert folder.jobs() == folder.jobs() == ["1", "2"]
    assert faults == [f"job mapping: {path}: line 2: {fault}"]
    folder.write("0", "1\n")
    assert folder.jobs() == ["1"]
    folder.write("0", line)
    assert folder.jobs() == []
    assert faults[1:] == [f"job mapping: {path}: line 1: {fault}"]


def test_an_id_of_just_the_limit_is_shown(folder: Folder, faults: list[str]) -> None:
    """128 characters are an id, whatever their bytes."""
    folder.write("0", "ä" * MAX_ID_LENGTH)
    assert folder.jobs() == ["ä" * MAX_ID_LENGTH]
    assert faults == []


def test_jobs_are_bounded(folder: Folder, faults: list[str]) -> None:
    """Beyond 16 jobs on a GPU, over all its files, the rest is left out and told; the other GPUs have theirs."""
    path = folder.write("0", "".join(f"{job}\n" for job in range(MAX_JOBS + 5)))
    folder.write("0.1", "3\n")
    folder.write("1", "8\n")
    assert folder.jobs() == [*(str(job) for job in range(MAX_JOBS)), "8"]
    assert faults == [f"job mapping: {path}: line 17: more than 16 jobs on GPU 0"]


def test_a_huge_file_is_read_to_its_limit(folder: Folder, faults: list[str]) -> None:
    """However long a file, its first 8 KiB are read, and no job is made of half a line."""
    path = folder.write("0", "4711\n" + "\n" * (MAX_FILE_BYTES - 7) + "47" + "12\n" * 10**6)
    assert folder.jobs() == ["4711"]
    assert faults == [f"job mapping: {path}: not read beyond 8192 bytes"]


def test_what_is_no_regular_file_is_not_opened(folder: Folder, faults: list[str], tmp_path: Path) -> None:
    """A FIFO without a writer, a link, a folder: none is waited for or followed, each is named, the rest lives."""
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    os.mkfifo(folder.path / "0")
    (folder.path / "0.1").symlink_to(secret)
    (folder.path / "0.2").mkdir()
    (folder.path / "0.3").symlink_to(folder.path / "nowhere")
    folder.write("1", "8\n")
    assert folder.jobs() == ["8"], "or it waits for ever"
    assert faults == [
        f"job mapping: {folder.path / name}: not read: a link, folder or device where a file belongs"
        for name in ("0", "0.1", "0.2", "0.3")
    ]


def test_a_folder_that_goes_and_comes(folder: Folder, faults: list[str]) -> None:
    """Without its folder a mapping shows no job, which is logged once; when it is back, so are the jobs."""
    folder.write("0", "1\n")
    assert folder.jobs() == ["1"]
    folder.path.rename(folder.path.with_name("gone"))
    assert folder.jobs() == folder.jobs() == []
    folder.path.write_text("a file in the place of the folder")
    assert folder.jobs() == []
    folder.path.unlink()
    folder.path.with_name("gone").rename(folder.path)
    assert folder.jobs() == ["1"]
    assert faults == [
        f"job mapping: {folder.path}: cannot be read: No such file or directory",
        f"job mapping: {folder.path}: cannot be read: no folder",
    ]


def test_an_index_that_two_gpus_had_is_not_believed(folder: Folder, faults: list[str]) -> None:
    """After a GPU was unplugged NVML renumbers, but the scheduler may not: better no jobs than another GPU's."""
    folder.write("0", "1\n")
    folder.write("1", "2\n")
    assert folder.jobs() == ["1", "2"]
    assert list(folder.mapping.samples((*GPUS, GpuIdentity("1", "GPU-cccc", "H100")))) == []
    assert faults == [f"job mapping: {folder.path}: ignored: a GPU was unplugged, so its index may be another GPU's"]
    assert folder.jobs() == ["1", "2"]


def test_a_folder_full_of_other_files_costs_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are asked for by name: a folder is never listed, and of a thousand others none is looked at."""
    folder.write("0", "1\n")
    for name in range(100, 1100):
        folder.write(str(name), "2\n")
    asked: list[str] = []
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: asked.append(path) or lstat(path))
    for listing in ("listdir", "scandir", "walk"):
        monkeypatch.delattr(os, listing)
    assert folder.jobs() == ["1"]
    assert len(asked) == len(GPUS) * (1 + len(MIG_INSTANCES))
