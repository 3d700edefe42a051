"""Host memory that a process alone holds."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from tachograph.client.transport.rank_state import host_memory


def test_memory_of_this_process() -> None:
    """Memory that a process touches is counted, in bytes."""
    before = host_memory()
    assert before is not None
    held = b"x" * (64 << 20)
    assert 60 << 20 < (host_memory() or 0) - before < 100 << 20
    assert len(held) == 64 << 20


def test_mapped_files_are_no_memory_of_ours(tmp_path: Path) -> None:
    """A memory-mapped dataset that is read through grows the resident set and leaks nothing."""
    path = tmp_path / "dataset"
    path.write_bytes(b"x" * (64 << 20))
    before = host_memory()
    assert before is not None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[page] for page in range(0, len(mapped), 4096)) > 0
        assert (host_memory() or 0) - before < 8 << 20


def test_resident_without_shared_is_meant(tmp_path: Path) -> None:
    """The size of the address space, the first number, is not memory in use; zero pages are zero bytes."""
    statm = tmp_path / "statm"
    statm.write_text("900 25 3 1 0 5 0\n")
    assert host_memory(str(statm)) == 22 * os.sysconf("SC_PAGE_SIZE")
    statm.write_text("900 3 3 1 0 5 0\n")
    assert host_memory(str(statm)) == 0


def test_a_kernel_that_does_not_say(tmp_path: Path) -> None:
    """Absent or unreadable is None, never 0."""
    assert host_memory(str(tmp_path / "absent")) is None
    for text in ("", "900", "900 25", "900 many 3"):
        (tmp_path / "statm").write_text(text)
        assert host_memory(str(tmp_path / "statm")) is None
