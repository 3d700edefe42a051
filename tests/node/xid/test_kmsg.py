"""The kernel's log: which lines are Xids, whatever else is written there."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.node.xid import kmsg
from tachograph.node.xid.kmsg import KernelLog, bus_key, is_nonfatal, kernel_record, uuid_of, xid_of
from tests.every import every

UUID = "GPU-fa4e0000-0000-4000-8000-00000000000a"
LINE = b"4,811,5000250,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"


@every(
    "text,found",
    [
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off", ("0000:1b:00", 79)),
        ("NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", ("0000:05:00", 79)),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", ("0000:03:00", 14)),
        ("NVRM: Xid (PCI:03:00): 31, Ch 00000010", ("0000:03:00", 31)),
        ("NVRM: Xid (PCI:0000:9B:00.0): 119, Timeout after 45s", ("0000:9b:00", 119)),
        ("NVRM: Xid (PCI:00000009:01:00): 149, NETIR Fatal XC0 i0 Link -1", ("0009:01:00", 149)),
        ("NVRM: Xid (PCI:0000:98:00 GPU-I:05): 94, pid=7194, name=python3, Contained", ("0000:98:00", 94)),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 1 caused by previous Xid 149", ("0000:dc:00", 45)),
        ("NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 to 0x1", ("0000:1b:00", 154)),
        ("NVRM: Xid (PCI:0000:1b:00): 4711, of a driver yet to come", ("0000:1b:00", 4711)),
        ("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.", ("0000:b3:00", 79)),
        (r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\x0a"
         r"NVRM: fallen off the bus and is not responding to commands.", ("0000:b3:00", 79)),
        ("NVRM:  Xid  ( PCI:0000:1b:00 ) :  79 ,  GPU has fallen off the bus.", ("0000:1b:00", 79)),
        (r"NVRM:\x09Xid\x09(PCI:0000:1b:00):\x0979,\x09GPU has fallen off the bus.", ("0000:1b:00", 79)),
        ("nvrm: XID (pci:0000:1b:00):79", ("0000:1b:00", 79)),
        ("NVRM: Xid (PCI: 0000:1b:00): 79", ("0000:1b:00", 79)),
        ("NVRM:  GPU  at  PCI:0000:b3:00.0:  GPU has fallen  off the bus.", ("0000:b3:00", 79)),
        ("NVRM: Xid (PCI:0000:1b:00): none", None),
        ("NVRM: Xid (PCI:0000:1b): 79, cut off", None),
        ("NVRM: Xid (PCI:0000:1b:00", None),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46", None),
        ("NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x24:0x72:1568)", None),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01", None),
        ("x[9]: segfault at 0, comm NVRM: Xid (PCI:0000:1b:00): 79, ", None),
    ],
)  # fmt: skip
def test_every_spelling_of_an_xid(text: str, found: tuple[str, int] | None) -> None:
    """Old and new drivers, MIG, no domain, eight digits of it, a function: all are found, and nothing else is."""
    record = kernel_record(f"4,811,5000250,-;{text}".encode())
    assert (None if record is None else xid_of(record.text)) == found


LINK_5 = "(0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"


@every(
    "text,nonfatal",
    [
        (f"145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 {LINK_5}", True),
        ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000 0x00000000 0x00000000", True),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000 0x00000000)", True),
        ("144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008)", True),
        ("146, TLW_RX/TLW_RX_PIPE0 Nonfatal XC0 i0 Link 00 (0x00000001)", True),
        (f"145, pid=4711, name=python3, RLW_RXPIPE Nonfatal XC0 i0 Link 13 {LINK_5}", True),
        (f"145, pid='<unknown>', name=<unknown>, RLW_RXPIPE Nonfatal XC0 i0 Link 13 {LINK_5}", True),
        ("145, RLW_RXPIPE Nonfatal", True),
        ("149, NETIR LINK EVT 3 Nonfatal XC0 i0 Link 03", True),
        ("150, MSE Non-fatal XC0 i0 Link 00 (0x00000001)", True),
        ("149, NETIR_LINK_EVT Fatal XC0 i1 Link 00 (0x025001c6 0x00000000)", True),
        ("145, pid=4, name=<unknown>, RLW_SRC_TRACK Fatal XC0 i1 Link 00 (0x00000001 0x00000002)", True),
        ("149, NETIR_LINK_DOWN Nonfatal XC1 i2 Link 17 (0xdeadbeef)", True),
        ("74, pid='<unknown>', name=<unknown>, NVLink: non-fatal error detected on link 14(0x0, 0x0)", True),
        (f"145, RLW_RXPIPE   Nonfatal XC0 i0 Link 03 {LINK_5}", True),
        (f"145,   RLW_RXPIPE   Nonfatal   XC0   i0   Link 03 {LINK_5}", True),
        (f"145 ,RLW_RXPIPE , NONFATAL , XC0 , i0 , Link 03 {LINK_5}", True),
        (f"145, RLW_RXPIPE      :  non fatal XC0 i0 Link 03 {LINK_5}", True),
        (f"145,RLW_RXPIPE,Nonfatal,XC0,i0,Link 03 {LINK_5}", True),
        (f"145, RLW_RXPIPE [Nonfatal] | XC0 | i0 | Link 03 {LINK_5}", True),
        ("149, NETIR_LINK_EVT (Fatal) XC0 (i1) Link 00", True),
        ("145, 'RLW_RXPIPE' \"Nonfatal\" XC0 i0 Link 03", True),
        ("145, RLW_RXPIPE <Nonfatal> {XC0} i0 Link 03", True),
        (r"145, RLW_RXPIPE \xc2\xa0Nonfatal XC0 i0 Link 03", True),
        ("79, pid=1, name='Nonfatal', GPU has fallen off the bus.", False),
        ("149, NETIR_LINK_EVT (Fatal) XC0 (i0) Link 00", False),
        ("145, RLW_SRC_TRACK" + " " * 64 + "Nonfatal" + " " * 64 + "XC0", True),
        (r"145,\x09RLW_RXPIPE\x09\x09Nonfatal\x09XC0 i0 Link 03", True),
        ("145,\tRLW_RXPIPE\tNonfatal\tXC0 i0 Link 03", True),
        (f"145 ,  pid=4711 ,  name=python3 ,  RLW_RXPIPE   Nonfatal XC0 i0 Link 03 {LINK_5}", True),
        (f"145, pid='<unknown>'  , name=<unknown>  ,RLW_RXPIPE   Nonfatal XC0 i0 Link 03 {LINK_5}", True),
        ("149, NETIR_LINK_EVT  Fatal   XC0   i1   Link 00 (0x025001c6)", True),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 00 (0x025001c6)", False),
        (r"149,\x09NETIR_LINK_EVT\x09FATAL\x09XC0\x09i0", False),
        ("149,NETIR_LINK_EVT,fatal,", False),
        ("79, pid=1, name=a  Nonfatal  , GPU has fallen off the bus.", False),
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000 0x00000000)", False),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000)", False),
        (f"145, RLW_RXPIPE Fatal XC0 i0 Link 13 {LINK_5}", False),
        (f"145, pid=4711, name=python3, RLW_RXPIPE Fatal XC1 i0 Link 13 {LINK_5}", False),
        ("74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000)", False),
        ("145, of a driver that says no more", False),
        ("137, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error", False),
        ("79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", False),
        ("45, pid=18, name=python3, Ch 00000001 caused by previous Xid 145", False),
        ("79, pid=1, name=Nonfatal, GPU has fallen off the bus.", False),
        ("79, pid=1, name=a, X Nonfatal, GPU has fallen off the bus.", False),
        ("79, pid=1, name=Nonfatal XC0 i1, GPU has fallen off the bus.", False),
        (r"79, pid=1, name=\x01\x01\x01, X Nonfatal, GPU has fallen off the bus.", False),
        (f"145, pid=1, name=b, Y Nonfatal, RLW_RXPIPE Fatal XC0 i0 Link 13 {LINK_5}", False),
    ],
)  # fmt: skip
def test_how_bad_an_xid_is_stands_in_its_text(text: str, nonfatal: bool) -> None:
    """The driver's own word and the mark of an injected error, wherever it stands; never the name of a process."""
    line = f"NVRM: Xid (PCI:0018:01:00): {text}"
    assert is_nonfatal(line) is nonfatal
    found = xid_of(line)
    assert found is not None
    assert found[1] == int(text.partition(",")[0])
    padded = "  ".join(line.split(" ")) if "name=" not in text else line  # a process' name is as it is
    shouted = padded.upper().replace("\\X09", "\\x09")  # the escape is the kernel's own
    assert is_nonfatal(padded) is is_nonfatal(shouted) is nonfatal
    assert not is_nonfatal(f"x[9]: segfault, comm {line}")


def test_a_gpu_is_named_by_its_line() -> None:
    """Before its first Xid the driver writes which GPU sits where."""
    assert uuid_of(f"NVRM: GPU at PCI:0000:1b:00: {UUID}") == ("0000:1b:00", UUID)
    assert uuid_of(f"NVRM: GPU at 0000:1b:00: {UUID}") == ("0000:1b:00", UUID)
    assert uuid_of(f"NVRM:  GPU  at  PCI:0000:1b:00 :   {UUID}") == ("0000:1b:00", UUID)
    assert uuid_of("NVRM: GPU at PCI:0000:1b:00: GPU-fa4e") is None


@pytest.mark.parametrize("bus_id", ["00000000:1B:00.0", "0000:1b:00", "PCI:0000:1b:00.0", "1b:00", "0000:1B:00.0"])
def test_a_bus_id_has_one_form(bus_id: str) -> None:
    """NVML's bus id and the log's are compared in the same form; the domain counts."""
    assert bus_key(bus_id) == "0000:1b:00" != bus_key("00000009:1B:00.0")


def test_only_the_kernel_is_believed() -> None:
    """A record with a facility was written by a program, which could claim any Xid."""
    assert kernel_record(LINE) is not None
    for priority in (8, 12, 30, 99999):
        assert kernel_record(LINE.replace(b"4,", b"%d," % priority, 1)) is None


def test_time_is_the_kernels() -> None:
    """The stamp is in microseconds since boot; also at the end of what 64 bits can hold."""
    record = kernel_record(LINE)
    assert record is not None
    assert record.at == pytest.approx(5.00025)
    last = kernel_record(LINE.replace(b"5000250", b"18446744073709551615"))
    assert last is not None
    assert last.at == pytest.approx(2**64 / 1e6)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda junk: b"4,1,1,-;NVRM: Xid (" + junk))
@settings(deadline=None)
def test_any_bytes_are_read_without_a_fault(line: bytes) -> None:
    """Whatever stands in the log, reading it raises nothing; what is no Xid in full is none."""
    record = kernel_record(line)
    if record is not None and (found := xid_of(record.text)) is not None:
        bus, xid = found
        assert is_nonfatal(record.text) in {True, False}
        assert bus_key(bus) == bus
        assert 0 <= xid < 100000


@given(
    junk=st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
@settings(deadline=None, max_examples=50)
def test_a_stream_may_be_cut_anywhere(junk: list[bytes], cuts: list[int]) -> None:
    """Through a pipe, records between junk and dictionaries all arrive, wherever the pieces end."""
    data = b"".join(piece + b"\n" + LINE + b" DEVICE=+pci:0000:1b:00.0\n" for piece in [b"", *junk])
    reader, writer = os.pipe()
    log = KernelLog(f"/proc/self/fd/{reader}")
    found = []
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(places):
        os.write(writer, data[start:end])
        records, all_read = log.turn()
        assert all_read
        found += records
    log.close()
    os.close(reader)
    os.close(writer)
    assert [xid_of(record.text) for record in found if xid_of(record.text)] == [("0000:1b:00", 79)] * (len(junk) + 1)


def test_records_lost_in_the_ring_are_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an overrun the kernel returns EPIPE once; reading continues with the oldest record; the loss is known."""
    answers: list[bytes | OSError] = [LINE, OSError(errno.EPIPE, "Broken pipe"), LINE, BlockingIOError()]

    def read(_file: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(str(path))
    assert not log.lost
    monkeypatch.setattr(kmsg.os, "read", read)
    records, all_read = log.turn()
    log.close()
    assert (len(records), all_read, log.lost) == (2, True, True)


def test_a_turn_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is written without end does not keep the reader from its pause."""
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(str(path))
    monkeypatch.setattr(kmsg.os, "read", lambda _file, _size: LINE)
    records, all_read = log.turn()
    log.close()
    assert (len(records), all_read) == (kmsg.TURN_RECORDS, False)
