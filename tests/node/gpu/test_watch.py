"""A GPU whose driver calls do not return: what it costs, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.gpu.reading_table import SLOW_SECONDS
from tests import waiting

FOREVER, UNINITIALIZED, LOST, RESET_REQUIRED = -1, 1, 15, 16
OTHERS = (0, 1, 2, 4, 6, 7)
HUNG_SECONDS, START_SECONDS = 3, 10  # at an interval of 1 s
SHORT = 1.5
"""Seconds for which a collection that meets a hang waits for answers, and in which those of the others come.

The clock it reads is the test's own.
"""

Stepper = Callable[..., Any]


def down(node: Any) -> dict[str, str]:
    """Return why each GPU that is down is so, by index."""
    words = {key[1]: key[3] for key in node.samples if key[0] == "unavailable_info"}
    assert words.keys() == {key[1] for key, value in node.samples.items() if key[0] == "up" and value == 0}
    return words


def uuids(node: Any) -> list[str]:
    return [uuid for _, uuid, _ in node.gpus]


def answered(collector: Any, at: float, condition: Callable[[Any], bool]) -> Any:
    """Collect at one time until what a thread brings back is in the line."""
    return waiting.until(lambda: node if condition(node := collector.at(at)) else None)


def goes_on(fake: Any) -> None:
    """Wait until one more call of GPU 3 has begun, and so the one before it has returned."""
    before = sum(fake.gpus[3].calls)
    waiting.until(lambda: sum(fake.gpus[3].calls) > before)


def test_one_lost_and_one_hung_gpu_cost_those_two_alone(fake: Any, stepper: Stepper) -> None:
    """The other six are read at each collection; the hung one is reported within 3 intervals and recovers by itself."""
    collector = stepper(fake.environment(), SHORT)
    before = collector.at(0)
    fake.hang(3)
    fake.gpus[5].error = LOST
    for now in range(1, 8):
        for index in OTHERS:
            fake.gpus[index].power = 500_000 + 1000 * now
        node = collector.at(now)
        assert node.ok
        assert all(node.gpu(index)["power_watts",] == 500 + now for index in OTHERS)
        assert down(node) == {"5": "lost"} | ({"3": "hung"} if now > HUNG_SECONDS else {})
    call = node.failures[f"GPU 3 ({fake.gpus[3].uuid.decode()})"]
    assert call.startswith("driver call does not return (nvml"), "it says which"
    fake.heal(3)
    fake.heal(5)
    after = answered(collector, 8, lambda node: not down(node))
    assert after.failures == {}
    assert after.gpu(3).keys() >= before.gpu(3).keys()


def test_a_gpu_that_is_down_keeps_its_name_and_nothing_else(fake: Any, stepper: Stepper) -> None:
    """Lost or hung: gpu_up 0, why, and gpu_info, so that an alert can name it; not one old reading."""
    collector = stepper(fake.environment(), SHORT)
    collector.at(0)
    fake.hang(3)
    fake.gpus[5].error = RESET_REQUIRED
    collector.at(1)
    node = collector.at(1 + HUNG_SECONDS)
    assert down(node) == {"3": "hung", "5": "reset_required"}
    for index in (3, 5):
        assert sorted(key[0] for key in node.gpu(index)) == ["info", "unavailable_info", "up"]


def test_a_value_is_not_repeated_for_longer_than_three_intervals(fake: Any, stepper: Stepper) -> None:
    """A thread that is late has its last rows shown; one that stays away has none."""
    collector = stepper(fake.environment(), SHORT)
    fake.gpus[3].power = 432_000
    collector.at(0)
    fake.hang(3)
    for now in (1, 2, 3.9):
        assert collector.at(now).gpu(3)["power_watts",] == 432
    assert ("power_watts",) not in collector.at(4).gpu(3)


def test_a_slow_gpu_is_not_hung(fake: Any, stepper: Stepper) -> None:
    """Answers that come after the line are in the next one."""
    collector = stepper(fake.environment(), 0.3)
    answered(collector, 0, lambda node: ("power_watts",) in node.gpu(3))
    fake.gpus[3].power = 123_000
    fake.gpus[3].block_ms = 60  # a dozen calls: later than the collection waits
    assert collector.at(1).gpu(3)["power_watts",] != 123
    assert answered(collector, 2, lambda node: node.gpu(3)["power_watts",] == 123)


def test_a_slow_collection_whose_calls_return_is_not_hung(fake: Any, stepper: Stepper) -> None:
    """However long they take together: the GPU is up, shows nothing that is older than 3 intervals, and is not told."""
    fake.gpus[3].power = 432_000
    collector = stepper(fake.environment(), 0.05)
    answered(collector, 0, lambda node: ("power_watts",) in node.gpu(3))
    fake.gpus[3].block_ms = 150  # each call; all of them take seconds
    collector.at(1)
    for now in (2, 3.9):
        assert collector.at(now).gpu(3)["power_watts",] == 432
        goes_on(fake)
    for now in (4, 5):
        node = collector.at(now)
        assert down(node) == {}
        assert sorted(key[0] for key in node.gpu(3)) == ["info", "up"]
        assert (node.ok, node.failures) == (True, {})
        goes_on(fake)
    fake.gpus[3].block_ms = 0
    answered(collector, 6.5, lambda node: ("power_watts",) in node.gpu(3))


def test_a_gpu_that_hung_is_so_until_its_collection_comes_back(fake: Any, stepper: Stepper) -> None:
    """One call that returned after all is no recovery while the next one takes as long."""
    collector = stepper(fake.environment(), 0.05)
    answered(collector, 0, lambda node: len(node.gpus) == 8 and not down(node) and node.gpu(3))
    fake.hang(3)
    collector.at(1)
    assert down(collector.at(4)) == {"3": "hung"}
    fake.gpus[3].block_ms = 200
    goes_on(fake)
    assert down(collector.at(4.5)) == {"3": "hung"}
    fake.gpus[3].block_ms = 0
    answered(collector, 5, lambda node: not down(node))


def test_all_gpus_hung_is_a_failed_collection(fake: Any, stepper: Stepper) -> None:
    """The reason names the call and how long it has not returned, and all is well again without a new process."""
    collector = stepper(fake.environment(), SHORT)
    collector.at(0)
    fake.block(FOREVER)
    assert collector.at(1).ok
    node = collector.at(5)
    assert (node.ok, node.collectors["gpu"]) == (False, "hung")
    assert node.reason.startswith("driver call has not returned for 4 s (nvml")
    assert set(down(node).values()) == {"hung"}
    fake.block(0)
    assert answered(collector, 6, lambda node: node.ok and not down(node))
    assert fake.state.init_calls == 1


def test_some_lost_and_the_rest_hung_is_a_failed_collection(fake: Any, stepper: Stepper) -> None:
    """With no GPU left to read, NVML stays open under the call that hangs, and each GPU keeps its own reason."""
    collector = stepper(fake.environment(), SHORT)
    collector.at(0)
    fake.hang(3)
    for index in (0, 1, 2, 4, 5, 6, 7):
        fake.gpus[index].error = LOST
    collector.at(1)
    node = collector.at(5)
    assert (node.ok, node.collectors["gpu"]) == (False, "hung")
    assert down(node) == {str(index): "hung" if index == 3 else "lost" for index in range(8)}


def test_the_rest_lost_while_one_is_still_being_opened_is_told_at_once(fake: Any, stepper: Stepper) -> None:
    """A GPU that is slow to open does not hide what became of the others."""
    fake.hang(3)
    for index in (0, 1, 2, 4, 5, 6, 7):
        fake.gpus[index].error = LOST
    # on a busy machine the first line may be too early
    node = answered(stepper(fake.environment(), SHORT), 0, lambda node: node.collectors["gpu"] != "starting")
    assert (node.ok, node.collectors["gpu"]) == (False, "error")
    assert down(node) == {str(index): "lost" for index in range(8) if index != 3}


def test_an_init_that_hangs_is_told_in_each_line(fake: Any, stepper: Stepper) -> None:
    """NVML that never opens leaves the collector speaking: starting at first, hung after 10 s, fine when it opens."""
    fake.state.init_block_ms = FOREVER
    collector = stepper(fake.environment(), SHORT)
    for now in range(START_SECONDS):
        node = collector.at(now)
        assert (node.ok, node.samples, node.collectors["gpu"]) == (False, {}, "starting")
    node = collector.at(12)
    assert (node.ok, node.samples, node.collectors) == (False, {}, {"gpu": "hung", "gpm": "hung"})
    assert node.reason == "driver call has not returned for 12 s (nvmlInit)"
    fake.state.init_block_ms = 0
    assert len(answered(collector, 13, lambda node: node.ok).gpus) == 8


def test_a_gpu_that_hangs_from_the_start_is_told_by_its_index(fake: Any, stepper: Stepper) -> None:
    """It never told its name, so it has none, and the other seven are read from the first collection on.

    They are opened one after the other: the last of eight may wait for seven, each of which takes seconds.
    """
    fake.hang(3)
    collector = stepper(fake.environment(), SHORT)
    node = collector.at(0)
    assert node.ok
    assert node.gpu(3) == {}
    assert node.gpus[3] == ("3", "", "")
    opening = START_SECONDS + 7 * HUNG_SECONDS
    assert ("unavailable_info", "3", "", "hung") not in collector.at(opening - 1).samples
    assert collector.at(opening).samples["unavailable_info", "3", "", "hung"] == 1
    fake.heal(3)
    uuid = fake.gpus[3].uuid.decode()
    answered(collector, opening + 1, lambda node: node.samples.get(("up", "3", uuid)) == 1)


def test_the_list_is_left_alone_while_a_call_hangs(fake: Any, stepper: Stepper) -> None:
    """The present index of a hung GPU is unknown: if one hangs and one is removed, none is reported twice."""
    collector = stepper(fake.environment(), SHORT)
    before = collector.at(0)
    fake.hang(5)
    collector.at(1)
    fake.unplug(2)
    node = collector.at(SLOW_SECONDS + 1)
    assert down(node) == {"2": "lost", "5": "hung"}
    node = collector.at(2 * SLOW_SECONDS + 1)  # index 2 was opened again, and is another GPU
    ups = [key[2] for key in node.samples if key[0] == "up"]
    assert sorted(ups) == [uuid for index, uuid in enumerate(uuids(before)) if index != 2]
    assert down(node) == {"5": "hung"}
    fake.heal(5)
    answered(collector, 2 * SLOW_SECONDS + 2, lambda node: not down(node))
    node = collector.at(3 * SLOW_SECONDS + 2)
    assert [(index, uuid) for index, uuid, _ in node.gpus] == [(str(i), u) for i, u in enumerate(sorted(ups))]


def test_a_driver_that_lets_go_of_all_but_a_hung_gpu_needs_a_new_process(fake: Any, stepper: Stepper) -> None:
    """NVML is never shut down under a thread that sits in it."""
    collector = stepper(fake.environment(), SHORT)
    collector.at(0)
    fake.hang(3)
    collector.at(1)
    fake.gpus[0].error = UNINITIALIZED
    assert collector.mismatch(2)


def test_a_fault_of_ours_costs_one_gpu(fake: Any, stepper: Stepper, tmp_path: Path) -> None:
    """An unexpected exception in the readings of one GPU takes down that one only, with the exception as its reason."""
    (tmp_path / "sitecustomize.py").write_text(
        "from tachograph.node.gpu.gpu_collector import GpuCollector\n"
        "collect = GpuCollector.collect\n"
        "def failing(self, *arguments):\n"
        "    return {}['surprise'] if self.known.identity.index == '4' else collect(self, *arguments)\n"
        "GpuCollector.collect = failing\n"
    )
    node = stepper({**fake.environment(), "PYTHONPATH": str(tmp_path)}).at(0)
    assert node.ok
    assert down(node) == {"4": "error"}
    assert list(node.failures.values()) == ["KeyError: 'surprise'"]


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("__import__('time').sleep(60)", "driver call does not return (nvmlDeviceGetCount)"),
        ("raise nvml.NvmlFailure('Insufficient Resources')", "Insufficient Resources"),
    ],
)
def test_without_a_list_the_known_gpus_are_read_on(
    fake: Any, stepper: Stepper, tmp_path: Path, then: str, reason: str
) -> None:
    """GPUs are counted every 15 s; a count that fails is logged, and costs no reading."""
    (tmp_path / "sitecustomize.py").write_text(
        "from tachograph.node.driver import nvml\n"
        "count, asked = nvml.Nvml.count, []\n"
        "def failing(self):\n"
        "    asked.append(1)\n"
        f"    if len(asked) > 1: {then}\n"
        "    return count(self)\n"
        "nvml.Nvml.count = failing\n"
    )
    collector = stepper({**fake.environment(), "PYTHONPATH": str(tmp_path)}, 2 * SHORT)  # what is read must be in time
    assert collector.at(0).failures == {}
    collector.at(SLOW_SECONDS)
    for now in (SLOW_SECONDS + 3, SLOW_SECONDS + 4):
        fake.gpus[7].power = 1000 * int(now)
        node = collector.at(now)
        assert node.ok
        assert node.failures == {"the list of GPUs": reason}
        assert node.gpu(7)["power_watts",] == now
