"""A GPU once seen stays known, with its name and a reason, whatever the worker says or does not say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.gpu.known_gpus import KnownGpus
from tachograph.node.gpu.worker_protocol import STARTING, GpuReading, NodeReading
from tachograph.node.samples import GpuIdentity, Sample

INFO = ("NVIDIA H100", "00000000:1B:00.0", "", "", "580.95.05", "13.0")


def line(*gpus: tuple[str, str], word: str = "", lost: str = "", **readings: dict[str, Any]) -> NodeReading:
    """Return a collection: these (index, UUID) are up with a reading, the index `lost` is lost, and what `readings`
    say of the GPUs by UUID.
    """  # noqa: D205
    found = []
    for index, uuid in gpus:
        labels = (index, uuid)
        read = {"series": ((catalog.GPU_POWER, labels),), "values": (600.0,), "info": (*labels, *INFO), "word": ""}
        reading = GpuReading(GpuIdentity(index, uuid, "NVIDIA H100"), **{**read, **readings.get(uuid, {})})
        if not uuid:
            reading = GpuReading(GpuIdentity(index, "", "")).down("lost" if index == lost else STARTING)
        found.append(reading)
    return NodeReading(tuple(found), (), (), {"gpu": word, "gpm": "", "xid": ""}, 0.01, word, {}, {})


def taken(known: KnownGpus, collection: NodeReading) -> list[Sample]:
    """Return the samples after one more collection."""
    known.take(collection)
    return known.samples()


def unavailable(samples: Sequence[Sample]) -> dict[tuple[str, str], str]:
    """Return why each GPU that is down is so, by index and UUID; a GPU is up, or down for one reason, never both."""
    words = {s.labels[:2]: s.labels[2] for s in samples if s.metric is catalog.GPU_UNAVAILABLE}
    ups = [(s.labels, s.value) for s in samples if s.metric is catalog.GPU_UP]
    assert len({labels for labels, _ in ups}) == len(ups), "a GPU is shown twice"
    assert {labels for labels, value in ups if value == 0} == words.keys()
    return words  # type: ignore[return-value]


def named(samples: Sequence[Sample]) -> set[str]:
    return {s.labels[1] for s in samples if s.metric is catalog.GPU_INFO}


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("", "unplugged"),
        ("no_gpu", "unplugged"),
        ("no_driver", "no_driver"),
        ("no_device_nodes", "no_driver"),
        ("driver_mismatch", "driver_mismatch"),
        ("hung", "hung"),
        ("error", "error"),
        ("worker", "worker"),
    ],
)
def test_a_gpu_that_the_line_leaves_out_is_down_with_a_reason(word: str, reason: str) -> None:
    """Left out of a good line it was unplugged; of a failed one, it shares the failure. Its name stays."""
    known = KnownGpus()
    known.take(line(("0", "A"), ("1", "B")))
    samples = taken(known, line(("0", "A"), word=word))
    assert unavailable(samples) == {("1", "B"): reason}
    assert named(samples) == {"A", "B"}
    assert [gpu.uuid for gpu in known.identities] == ["A", "B"]
    assert reason in catalog.UNAVAILABLE_REASONS


def test_an_unplugged_gpu_stays_known_and_may_come_back() -> None:
    """It is down for as long as the exporter runs, and up again at whatever index it returns."""
    known = KnownGpus()
    known.take(line(("0", "A"), ("1", "B"), ("2", "C")))
    for _ in range(1000):
        samples = taken(known, line(("0", "A"), ("1", "C")))
    assert unavailable(samples) == {("1", "B"): "unplugged"}
    samples = taken(known, line(("0", "B"), ("1", "A"), ("2", "C")))
    assert unavailable(samples) == {}
    assert [(gpu.index, gpu.uuid) for gpu in known.identities] == [("0", "B"), ("1", "A"), ("2", "C")]


def test_a_gpu_without_a_name_is_the_one_missing_at_its_index() -> None:
    """A worker that starts on a lost GPU cannot tell its UUID; the exporter remembers it."""
    known = KnownGpus()
    known.take(line(("0", "A"), ("1", "B")))
    samples = taken(known, line(("0", "A"), ("1", ""), lost="1"))
    assert unavailable(samples) == {("1", "B"): "lost"}
    assert named(samples) == {"A", "B"}
    assert [gpu.uuid for gpu in known.identities] == ["A", "B"]
    samples = taken(known, line(("0", "A"), ("1", "")))
    assert unavailable(samples) == {("1", "B"): "lost"}, "while it is being opened it is what it was"


def test_a_gpu_nobody_ever_could_open_has_an_index_only() -> None:
    """Lost before the exporter started: down, and without a name, because there is none to give."""
    known = KnownGpus()
    samples = taken(known, line(("0", "A"), ("1", ""), lost="1"))
    assert unavailable(samples) == {("1", ""): "lost"}
    assert known.identities == (GpuIdentity("0", "A", "NVIDIA H100"), GpuIdentity("1", "", ""))
    samples = taken(known, line(("0", "A"), ("1", "B")))
    assert unavailable(samples) == {}
    assert [gpu.uuid for gpu in known.identities] == ["A", "B"]


def test_while_no_line_comes_all_are_down_with_their_names() -> None:
    """Without a worker there is one reason for all, and nothing else is said of them."""
    known = KnownGpus()
    assert known.down("worker") == []
    known.take(line(("0", "A"), ("1", "B")))
    samples = known.down("hung")
    assert unavailable(samples) == {("0", "A"): "hung", ("1", "B"): "hung"}
    assert named(samples) == {"A", "B"}
    assert {s.metric for s in samples} == {catalog.GPU_UP, catalog.GPU_UNAVAILABLE, catalog.GPU_INFO}


def test_a_process_has_a_gpu_only_if_it_is_on_one() -> None:
    """A pid on two GPUs is on none: which of them a rank computes on, its pid does not say."""
    known = KnownGpus()
    known.take(line(("0", "A"), ("1", "B"), A={"pids": (10, 30)}, B={"pids": (20, 30)}))
    gpu = known.of_pid(20)
    assert gpu is not None
    assert gpu.uuid == "B"
    assert known.of_pid(30) is None
    assert known.of_pid(40) is None
    known.take(line(("0", "A"), ("1", "B"), A={"pids": (10,)}))
    assert known.of_pid(20) is None, "a process that ended is forgotten"


def test_the_peak_of_a_gpu_that_is_down_stands() -> None:
    """A lost GPU must not move a run's MFU; one that is read again tells its peaks afresh."""
    known = KnownGpus()
    peak = {"series": ((catalog.GPU_PEAK_FLOPS, ("0", "A", "bf16")),), "values": (989e12,)}
    known.take(line(("0", "A"), A=peak))
    known.take(line(word="no_driver"))
    known.take(line(("0", "A"), A={"series": (), "values": ()}))
    assert known.peak_flops("A", "torch.bfloat16") == 989e12
    known.take(line(("0", "A")))
    assert known.peak_flops("A", "bf16") is None


def test_what_the_kernel_said_is_of_one_collection() -> None:
    """Other events stand beside the GPUs while a line has them, and go with it: an age that stands still is none."""
    known = KnownGpus()
    series = ((catalog.NODE_KERNEL_EVENTS, ("nfs",)), (catalog.NODE_KERNEL_MESSAGE, ("nfs", "nfs: server a")))
    told = [Sample(metric, labels, 2.0) for metric, labels in series]
    shown = taken(known, replace(line(("0", "GPU-a")), kernel_series=series, kernel_values=(2.0, 2.0)))
    assert shown[-2:] == told
    assert not set(told) & {*known.down("worker"), *taken(known, line(("0", "GPU-a")))}


def test_an_xid_outlives_the_worker_that_counted_it() -> None:
    """Where the kernel's log cannot be read the next worker knows of none, and the alert on it would end."""
    known = KnownGpus()
    series = ((catalog.GPU_XID_ERRORS, ("0", "GPU-a", "119")),)
    known.take(replace(line(("0", "GPU-a")), xid_series=series, xid_values=(2.0,)))
    (xid,) = (Sample(metric, labels, 2.0) for metric, labels in series)
    assert xid in known.down("worker")
    assert xid in taken(known, line(("0", "GPU-a")))
    moved = ((catalog.GPU_XID_ERRORS, ("1", "GPU-a", "119")),)
    shown = taken(known, replace(line(("1", "GPU-a")), xid_series=moved, xid_values=(3.0,)))
    assert [each for each in shown if each.metric is catalog.GPU_XID_ERRORS] == [Sample(*moved[0], 3.0)]
