"""The lines between worker and exporter: nothing is lost on the way, and what does not change is sent once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.gpu.worker_protocol import STARTING, GpuReading, LineReader, LineWriter, NodeReading
from tachograph.node.samples import GpuIdentity, Sample

LABELS = ("0", "GPU-a")
READ = GpuReading(
    GpuIdentity(*LABELS, "NVIDIA H100"),
    "",
    ((catalog.GPU_POWER, LABELS), (catalog.GPU_CLOCK, (*LABELS, "sm"))),
    (612.5, 1.98e9),
    (*LABELS, "NVIDIA H100", "00000000:1B:00.0", "", "", "580.95.05", "13.0"),
    (4242,),
    "not_supported",
    {"energy of GPU 0": "Unknown Error"},
    {"NVIDIA H100": "no energy"},
)
COLLECTION = NodeReading(
    (READ, GpuReading(GpuIdentity("1", "", ""))),
    ((catalog.GPU_XID_ERRORS, (*LABELS, "79")),),
    (0.0,),
    {"gpu": "", "gpm": "", "xid": ""},
    0.004,
    "",
    {"the list of GPUs": "late"},
    {"Xids from NVML": "none"},
    ((catalog.NODE_KERNEL_EVENTS, ("nfs",)),),
    (2.0,),
)


def test_a_collection_arrives_as_it_was_sent() -> None:
    """Every field of every reading, on the first line and on later ones, also after series came and went."""
    writer, reader = LineWriter(), LineReader()
    fewer = replace(READ, series=READ.series[:1], values=(0.0,))
    for gpu in (READ, READ, replace(READ, values=(1.0, 2.0)), READ.down("lost", "gone"), READ, fewer, fewer, READ):
        sent = replace(COLLECTION, gpus=(gpu, COLLECTION.gpus[1]))
        assert reader.read(writer.line(sent)) == sent
    swapped = replace(COLLECTION, gpus=(READ,), xid_series=(), xid_values=())
    assert reader.read(writer.line(swapped)) == swapped


def test_names_and_labels_are_sent_once() -> None:
    """A line like the one before has numbers, and not one name."""
    writer = LineWriter()
    first, second = writer.line(COLLECTION), writer.line(COLLECTION)
    assert first.count("tachograph_") == 4
    assert second.count("tachograph_") == 0


def test_a_reading_gives_the_samples_of_its_state() -> None:
    """Up with all values, up without stale ones, down with a reason and its name, or nothing while it is opened."""
    info = Sample(catalog.GPU_INFO, READ.info, 1.0)
    up, down = Sample(catalog.GPU_UP, LABELS, 1.0), Sample(catalog.GPU_UP, LABELS, 0.0)
    power = Sample(catalog.GPU_POWER, LABELS, 612.5)
    clock = Sample(catalog.GPU_CLOCK, (*LABELS, "sm"), 1.98e9)
    assert READ.samples() == [up, info, power, clock]
    assert READ.stale().samples() == [up, info]
    assert READ.down("lost").samples() == [down, Sample(catalog.GPU_UNAVAILABLE, (*LABELS, "lost"), 1.0), info]
    assert replace(READ, word=STARTING).samples() == []


@pytest.mark.parametrize("line", ["", "{", "7", "[]", "{}", '{"gpus": [], "xid_series": [["no_such_metric", []]]}'])
def test_another_text_is_refused(line: str) -> None:
    """Anything but a line of a worker of this version raises one of four errors."""
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        LineReader().read(line)
