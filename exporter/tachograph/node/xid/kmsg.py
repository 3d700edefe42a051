"""The kernel's log as /dev/kmsg gives it, and the lines of the NVIDIA driver in it; kernel_signatures has others.

A record is `priority,sequence,microseconds,flags;text`, one for each read; its dictionary follows on lines that begin
with a space (kernel.org, Documentation/ABI/testing/dev-kmsg). Opened anew, it begins with everything the ring holds.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

RECORD_LIMIT = 1 << 16  # bytes; the kernel's are at most 8 KiB
TURN_RECORDS = 2000
"""How many records one turn reads at most: with a pause after each, a storm of lines costs only a share of a core."""

FALLEN_OFF_THE_BUS = 79

_HEAD = re.compile(rb"(\d{1,5}),\d{1,20},(\d{1,20})(?:,[^;]*)?;(.*)", re.DOTALL)
# Drivers pad their columns, and the kernel writes a tab as \x09: no pattern counts on one blank.
_GAP = r"(?:\s|\\x09)"
_BUS = rf"(?:PCI:{_GAP}*)?((?:[0-9a-fA-F]{{4,8}}:)?[0-9a-fA-F]{{2}}:[0-9a-fA-F]{{2}})(?:\.[0-7])?"
_BUS_ID = re.compile(_BUS)

# Anchored, because a process may call itself whatever it likes and the driver prints process names. Spellings, oldest
# first: "Xid (0000:03:00): 14, Ch 1" · "Xid (PCI:0000:1b:00): 79, pid=…" · MIG: "Xid (PCI:0000:98:00 GPU-I:05): 94, …".
_XID = re.compile(
    rf"{_GAP}*NVRM:{_GAP}*Xid{_GAP}*\({_GAP}*{_BUS}(?:{_GAP}[^)]*)?\){_GAP}*:{_GAP}*(\d{{1,5}})\b", re.IGNORECASE
)
# The process that an Xid is put down to. Its name has 15 bytes at most, each as it is or escaped, and may look like any
# of what follows.
_PROCESS = re.compile(
    rf"{_GAP}*,{_GAP}*pid{_GAP}*=[^,]{{0,40}},{_GAP}*name=(?:\\x[0-9a-f]{{2}}|.){{0,15}}(?={_GAP}*,)", re.IGNORECASE
)
# How bad an Xid is, where the text says so, and whether it was injected for a test (i1). Spellings: "145, RLW_RXPIPE
# Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 …)" · "149, NETIR_LINK_EVT  Fatal   XC0 i0 …" · "74, pid=…, name=…,
# NVLink: fatal error detected on link 14(…". It is matched with one blank between words and no punctuation there.
_SEVERITY = re.compile(r" ?(?:[\w/.-]+ ){0,4}?(non[- _]?fatal|fatal)\b(?: XC\d+ i(\d+)\b)?", re.IGNORECASE)
_BETWEEN_WORDS = re.compile(r"(?:[\s,:;|=()\[\]{}<>'\"]|\\x09|\\xc2\\xa0)+", re.IGNORECASE)
_SEVERITY_WITHIN = 256  # characters, padding included
# A GPU that is gone when the driver looks for it is reported without an Xid.
_FALLEN = re.compile(
    rf"{_GAP}*NVRM:{_GAP}*(?:The{_GAP}+NVIDIA{_GAP}+)?GPU{_GAP}+(?:at{_GAP}+)?{_BUS}\b.*fallen{_GAP}+off{_GAP}+the{_GAP}+bus",
    re.DOTALL | re.IGNORECASE,
)
_UUID = re.compile(
    rf"{_GAP}*NVRM:{_GAP}*GPU{_GAP}+at{_GAP}+{_BUS}{_GAP}*:{_GAP}*"
    r"(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
)


@dataclass(frozen=True)
class Record:
    """A message of the kernel; `at` is in seconds of the kernel's clock, which starts at boot."""

    at: float
    text: str


class KernelLog:
    """An open kernel log, or any file or stream of the same form; opening it raises OSError."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""
        self.lost = False
        """Whether the kernel ever wrote over records that were not read yet."""

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._file

    def close(self) -> None:
        """Close it."""
        os.close(self._file)

    def turn(self) -> tuple[list[Record], bool]:
        """Return the kernel's records among what can be read now, and whether that was all there is."""
        records: list[Record] = []
        for _ in range(TURN_RECORDS):
            try:
                data = os.read(self._file, RECORD_LIMIT)
            except BlockingIOError:
                return records, True
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                self.lost = True  # the next read continues with the oldest record there is
                continue
            if not data:  # the end of a plain file, for now
                return records, True
            records += self._records(data)
        return records, False

    def _records(self, data: bytes) -> Iterator[Record]:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-RECORD_LIMIT:]
        return (record for line in lines if (record := kernel_record(line)) is not None)


def kernel_record(line: bytes) -> Record | None:
    """Return a line's record if the kernel or a driver wrote it, whatever else the line is."""
    head = _HEAD.match(line)
    if head is None or int(head[1]) >> 3:  # a facility: written by a program, which can claim anything
        return None
    return Record(int(head[2]) * 1e-6, head[3].decode("utf-8", "replace"))


def xid_of(text: str) -> tuple[str, int] | None:
    """Return bus id and number of the Xid that a driver's line reports, None if it reports none."""
    if found := _XID.match(text):
        return bus_key(found[1]), int(found[2])
    if found := _FALLEN.match(text):
        return bus_key(found[1]), FALLEN_OFF_THE_BUS
    return None


def is_nonfatal(text: str) -> bool:
    """Return whether a driver's line says of its Xid that it is nonfatal, or was injected for a test."""
    xid = _XID.match(text)
    if xid is None:
        return False
    process = _PROCESS.match(text, xid.end())
    rest = text[xid.end() if process is None else process.end() :]
    found = _SEVERITY.match(_BETWEEN_WORDS.sub(" ", rest[:_SEVERITY_WITHIN]))
    return found is not None and (found[1].lower() != "fatal" or int(found[2] or 0) > 0)


def uuid_of(text: str) -> tuple[str, str] | None:
    """Return bus id and UUID of the GPU that a driver's line names, None if it names none."""
    found = _UUID.match(text)
    return (bus_key(found[1]), found[2]) if found else None


def bus_key(bus_id: str) -> str:
    """Return a PCI bus id in the form `0000:1b:00`: NVML writes 8 digits and a function, the log 4 and none."""
    found = _BUS_ID.fullmatch(bus_id)
    if found is None:
        return bus_id
    *domain, bus, device = found[1].split(":")
    return f"{int(domain[0], 16) if domain else 0:04x}:{bus.lower()}:{device.lower()}"
