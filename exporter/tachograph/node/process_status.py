"""The fields of proc_pid_status(5), which the kernel shows of a process to everybody."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def process_status(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Return the fields of a process by name, empty where it is not visible.

    Only a line feed ends a line: the process chooses its own name, the first field, and the kernel escapes no other
    character in it.
    """
    try:
        text = (proc / str(pid) / "status").read_bytes()
    except OSError:
        return {}
    fields = (line.partition(":") for line in text.decode(errors="replace").split("\n"))
    return {name: value.strip() for name, _, value in fields}


def numbers(pid: int, proc: Path = PROC) -> list[int]:
    """Return the pids of a process in its pid namespaces, the outermost first; empty where it is not visible."""
    return [int(number) for number in process_status(pid, proc).get("NSpid", "").split()]
