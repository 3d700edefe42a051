"""Texts from the driver that are not UTF-8: shown with a replacement character, and no reading is lost for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from tachograph.node.exposition import OPENMETRICS, TEXT, render
from tests.node.gpu.test_captures import capture, replay

OneGpu = Callable[..., Any]
BROKEN = b"NVIDIA \xff\xe9 RTX \x94\xc3"
"""Bytes that begin no character, one of Latin-1, and a character that is cut off."""

SHOWN = BROKEN.decode("utf-8", "replace")


def test_no_text_of_the_driver_costs_a_reading(fake: Any, stepper: Any) -> None:
    """Name, UUID, serial number, VBIOS, bus id, MIG and driver: readable, and every GPU is read as it was before."""
    before = stepper(fake.environment()).at(0)
    gpu = fake.gpus[2]
    gpu.name, gpu.uuid, gpu.serial, gpu.vbios, gpu.bus_id = (b"%s %d" % (BROKEN, number) for number in range(5))
    fake.state.driver_version = b"580.\xff95.05"
    fake.add_mig(5, 1).uuid = b"MIG-" + BROKEN
    told = stepper(fake.environment()).at(0)
    assert (told.ok, told.failures) == (True, {})
    assert told.gpus[2] == ("2", f"{SHOWN} 1", f"{SHOWN} 0")
    (info,) = (key for key in told.gpu(2) if key[0] == "info")
    assert info == ("info", f"{SHOWN} 0", f"{SHOWN} 4", f"{SHOWN} 2", f"{SHOWN} 3", "580.�95.05", "13.0")
    (instance,) = (key for key in told.gpu(5) if key[0] == "mig_info")
    assert instance[2] == f"MIG-{SHOWN}"
    for index in (0, 1, 2, 3, 4, 6, 7):
        of_the_model = {"info", "peak_flops", "achievable_flops"}
        lost = {key for key in before.gpu(index).keys() - told.gpu(index).keys() if key[0] not in of_the_model}
        assert lost == set(), index


@pytest.mark.parametrize(("form", "reader"), [(TEXT, parser), (OPENMETRICS, openmetrics)])
def test_any_text_makes_a_valid_page(fake: Any, stepper: Any, form: Any, reader: Any) -> None:
    """What reaches a label is UTF-8 and escaped: the page can be read back, label by label."""
    fake.gpus[0].name = BROKEN + b'\n"\\\r\t} 1'
    page = render(stepper(fake.environment()).at(0).collection.samples(), form).decode("utf-8")
    samples = [sample for family in reader.text_string_to_metric_families(page) for sample in family.samples]
    names = {sample.labels["name"] for sample in samples if sample.name == "tachograph_gpu_info"}
    assert names == {SHOWN + '\n"\\\r\t} 1', "NVIDIA H100 80GB HBM3"}


def test_the_words_of_an_error_cost_nothing(fake: Any, one_gpu: OneGpu) -> None:
    """An error that pynvml does not know is asked for its words, and these may be anything, too."""
    fake.state.error_words = BROKEN
    fake.fail("power", 812, 0)
    told = one_gpu().at(0)
    assert told.failures["tachograph_gpu_power_watts of GPU 0"] == SHOWN
    assert ("temperature_celsius", "gpu") in told.samples


def test_xids_are_watched_on_a_gpu_of_any_name(fake: Any, worker: Any) -> None:
    """The events of a GPU whose UUID and bus id are not UTF-8 are counted on it."""
    fake.gpus[1].uuid, fake.gpus[1].bus_id = b"GPU-\xff", b"\xff1"
    running = worker(fake.environment(), "--interval", "0.1")
    running.line_where(lambda node: fake.called("register_events", 7))
    fake.queue_xid(1, 79)
    counted = running.line_where(lambda node: ("xid_errors_total", "1", "GPU-�", "79") in node.samples)
    assert counted.collectors["xid"] == ""


def test_such_texts_are_captured_and_replayed(fake: Any, tmp_path: Path) -> None:
    """`tachograph capture` records them as they are shown."""
    fake.state.count = 1
    fake.gpus[0].name, fake.gpus[0].bus_id = BROKEN, b"\xff"
    path = capture(fake.environment(), tmp_path / "capture.json")
    (gpu,) = replay(path, 0).gpus
    assert (gpu.word, gpu.identity.name, gpu.info[3]) == ("", SHOWN, "�")
