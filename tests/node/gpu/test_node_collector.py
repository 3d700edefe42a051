"""All GPUs of a node on the fake library: one that fails affects no other, and the driver may be reloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph import extras
from tachograph.node.driver.nvml import DriverAbsent
from tachograph.node.gpu.node_collector import absence
from tachograph.node.gpu.reading_table import SLOW_SECONDS

UNINITIALIZED, LOST, RESET_REQUIRED, UNKNOWN = 1, 15, 16, 999
Stepper = Callable[[Any], Any]


@pytest.mark.parametrize(("error", "word"), [(LOST, "lost"), (RESET_REQUIRED, "reset_required"), (UNKNOWN, "error")])
def test_a_lost_gpu_costs_that_gpu_alone(fake: Any, stepper: Stepper, error: int, word: str) -> None:
    """One of eight gone: gpu_up 0 and not one old value for it, everything for the others, all back when it is back."""
    collector = stepper(fake.environment())
    collector.at(0)
    before = collector.at(1)  # GPM needs two samples
    fake.gpus[3].error = error
    node = collector.at(2)
    assert node.ok
    assert sorted(key[0] for key in node.gpu(3)) == ["info", "unavailable_info", "up"]
    assert node.gpu(3)["up",] == 0
    assert node.gpu(3)["unavailable_info", word] == 1
    assert all(node.gpu(other) == before.gpu(other) for other in (0, 1, 2, 4, 5, 6, 7))
    assert list(node.failures) == [f"GPU 3 ({fake.gpus[3].uuid.decode()})"]
    fake.gpus[3].error = 0
    after = collector.at(3)
    assert after.gpu(3) == before.gpu(3)
    assert after.failures == {}


def test_a_lost_gpu_is_opened_again_seldom(fake: Any, stepper: Stepper) -> None:
    """A dead GPU is not re-opened at each collection, for the kernel logs each try."""
    collector = stepper(fake.environment())
    collector.at(0)
    fake.gpus[3].error = LOST
    for now in range(1, 32):
        collector.at(now)
    assert fake.called("handle", 3) == 1 + 2


def test_a_gpu_that_was_lost_before_the_start_is_shown_as_down(fake: Any, stepper: Stepper) -> None:
    """A GPU that never could be opened has an index and no UUID, and gets its name once it can be."""
    fake.gpus[3].error = LOST
    collector = stepper(fake.environment())
    node = collector.at(0)
    assert node.ok
    assert node.samples["up", "3", ""] == 0
    assert node.gpus[3] == ("3", "", "")
    fake.gpus[3].error = 0
    assert ("up", "3", "") in collector.at(1).samples
    assert collector.at(SLOW_SECONDS).samples["up", "3", fake.gpus[3].uuid.decode()] == 1


def test_without_a_driver_the_reason_stands_and_back_off_grows(fake: Any, stepper: Stepper) -> None:
    """A node without a driver is tried after 1, 2, 4, … s, and served as soon as the driver is there."""
    fake.state.init_error = 9
    collector = stepper(fake.environment())
    for now in range(8):
        node = collector.at(now)
        assert (node.ok, node.samples, node.reason) == (False, {}, "the NVIDIA driver is not loaded")
    assert fake.state.init_calls == 4, "at 0, 1, 3 and 7 s"
    fake.state.init_error = 0
    assert not collector.at(14).ok
    node = collector.at(15)
    assert node.ok
    assert len(node.gpus) == 8
    fake.break_all(UNKNOWN)
    assert not collector.at(16).ok
    fake.break_all(0)
    assert collector.at(17).ok, "after readings, the back-off begins anew at a second"


def test_back_off_ends_at_30_seconds(fake: Any, stepper: Stepper) -> None:
    """However long the driver is away, it is noticed within 30 s of its return."""
    fake.state.init_error = 9
    collector = stepper(fake.environment())
    for now in range(1000):
        collector.at(now)
    tries = fake.state.init_calls
    for now in range(1000, 1090):
        collector.at(now)
    assert fake.state.init_calls == tries + 3


def test_no_library_is_a_reason(stepper: Stepper, tmp_path: Path) -> None:
    """A missing driver library is reported in words."""
    (tmp_path / "libnvidia-ml.so.1").touch()  # found first and not loadable, also where a real driver is installed
    node = stepper({"LD_LIBRARY_PATH": str(tmp_path)}).at(0)
    assert (node.ok, node.reason) == (False, "no NVIDIA driver: libnvidia-ml.so.1 is not found")


def test_no_pynvml_is_a_reason_that_says_what_to_install(stepper: Stepper, tmp_path: Path) -> None:
    """The base install has no pynvml; the reason names the extra that brings it."""
    (tmp_path / "pynvml.py").write_text("raise ImportError\n")
    node = stepper({"PYTHONPATH": str(tmp_path)}).at(0)
    assert (node.ok, node.reason) == (False, f"pynvml is not installed: {extras.command('exporter')}")


def test_no_gpu_is_a_reason_and_one_that_comes_is_found(fake: Any, stepper: Stepper) -> None:
    """A driver without GPUs is not a success; GPUs that appear are found at the next slow round."""
    fake.state.count = 0
    collector = stepper(fake.environment())
    node = collector.at(0)
    assert (node.ok, node.reason) == (False, "the driver shows no GPU")
    fake.state.count = 2
    assert collector.at(SLOW_SECONDS).gpu(1)["up",] == 1


def test_an_unplugged_gpu_leaves_and_indices_move_up(fake: Any, stepper: Stepper) -> None:
    """Readings belong to a UUID: after GPU 2 is gone each of the others has its own values at its new index."""
    collector = stepper(fake.environment())
    for index in range(8):
        fake.gpus[index].power = 100_000 * (index + 1)
    before = [uuid for _, uuid, _ in collector.at(0).gpus]
    fake.unplug(2)
    assert collector.at(1).gpu(2)["unavailable_info", "lost"] == 1
    node = collector.at(SLOW_SECONDS)
    assert [uuid for _, uuid, _ in node.gpus] == [*before[:2], *before[3:]]
    assert all(value for key, value in node.samples.items() if key[0] == "up")
    watts = {key[2]: value for key, value in node.samples.items() if key[0] == "power_watts"}
    assert watts == {uuid: 100.0 * (index + 1) for index, uuid in enumerate(before) if index != 2}
    fake.plug(2)
    node = collector.at(2 * SLOW_SECONDS)
    assert [uuid for _, uuid, _ in node.gpus] == before
    assert node.gpu(2)["power_watts",] == 300


def test_nvml_is_opened_again_when_the_kernel_lists_other_gpus(fake: Any, stepper: Stepper, tmp_path: Path) -> None:
    """NVML looks for GPUs when it is opened, so one that is plugged in later needs another opening."""
    buses = tmp_path / "proc/driver/nvidia/gpus"
    (buses / "0000:1b:00.0").mkdir(parents=True)
    collector = stepper(fake.environment())
    collector.at(0)
    assert collector.at(SLOW_SECONDS).ok
    assert fake.state.init_calls == 1
    (buses / "0000:2b:00.0").mkdir()
    fake.state.count = 9
    assert len(collector.at(SLOW_SECONDS + 1).gpus) == 8
    node = collector.at(2 * SLOW_SECONDS)
    assert node.ok
    assert len(node.gpus) == 9
    assert all(value for key, value in node.samples.items() if key[0] == "up")
    assert fake.state.init_calls == 2


def test_pids_are_told_for_each_gpu(fake: Any, stepper: Stepper) -> None:
    """The processes NVML lists, by index; those of a GPU that is down are unknown."""
    fake.gpus[1].process_id = 4242
    fake.gpus[6].process_id = 4343
    collector = stepper(fake.environment())
    assert collector.at(0).processes == {"1": [4242], "6": [4343]}
    fake.gpus[6].error = LOST
    assert collector.at(1).processes == {"1": [4242]}


def test_an_unloaded_driver_is_let_go_and_opened_again(fake: Any, stepper: Stepper) -> None:
    """UNINITIALIZED from one call means all of NVML: no GPU is shown up, and it is initialised afresh with back-off."""
    collector = stepper(fake.environment())
    collector.at(0)
    fake.state.init_error = 9
    fake.gpus[4].error = UNINITIALIZED
    node = collector.at(1)
    assert (node.ok, node.collectors["gpu"]) == (False, "no_driver")
    words = {key[3] for key in node.samples if key[0] == "unavailable_info"}
    assert words == {"no_driver"}
    assert node.failures == {}, "one reason for all is logged once"
    fake.break_all(0)
    assert collector.at(2).reason == "the NVIDIA driver is not loaded"
    fake.state.init_error = 0
    assert not collector.at(3.5).ok
    node = collector.at(4)
    assert node.ok
    assert all(value for key, value in node.samples.items() if key[0] == "up")
    assert fake.state.init_calls == 3


def test_a_reloaded_driver_is_opened_again(fake: Any, stepper: Stepper) -> None:
    """When every GPU fails, NVML is initialised afresh: after a driver reload old handles never work again."""
    collector = stepper(fake.environment())
    collector.at(0)
    fake.break_all(UNKNOWN)
    node = collector.at(1)
    assert not node.ok
    assert node.reason == "no GPU can be read: NVML reports an unknown error"
    assert {value for key, value in node.samples.items() if key[0] == "up"} == {0}
    fake.break_all(0)
    assert not collector.at(1.5).ok
    assert collector.at(2).ok
    assert fake.state.init_calls == 2


@pytest.mark.parametrize("at_init", [True, False])
def test_a_replaced_driver_asks_for_a_new_process(fake: Any, stepper: Stepper, at_init: bool) -> None:
    """The loaded library cannot speak to a newer kernel module: only a new process helps, and is asked for."""
    collector = stepper(fake.environment())
    if at_init:
        fake.state.init_error = 18
    else:
        collector.at(0)
        fake.break_all(18)
    assert "was replaced" in collector.mismatch(1)


@pytest.mark.parametrize(
    ("files", "word", "sentence"),
    [
        ((), "no_driver", "not loaded"),
        (("proc/driver/nvidia/version",), "no_device_nodes", "not loaded: the kernel module is loaded, but "),
        (("proc/driver/nvidia/version", "dev/nvidiactl"), "no_driver", "not loaded"),
    ],
)
def test_a_container_without_its_devices_is_told_from_a_node_without_a_driver(
    tmp_path: Path, files: tuple[str, ...], word: str, sentence: str
) -> None:
    """The advice differs: start the container with its GPUs, or load the driver."""
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    found, why = absence(DriverAbsent("not loaded"), tmp_path)
    assert found == word
    assert why.startswith(sentence)


def test_devices_that_may_not_be_opened_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is there and closed to this user is a matter of permission."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    word, why = absence(DriverAbsent("no permission"), tmp_path)
    assert word == "no_permission"
    assert "no permission to open " in why
    assert why.endswith("dev/nvidiactl")
