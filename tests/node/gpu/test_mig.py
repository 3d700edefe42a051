"""MIG instances on the made-up library: families of their own, and nothing counted twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tachograph.node.gpu.reading_table import SLOW_SECONDS

NOT_SUPPORTED, NOT_FOUND, NO_PERMISSION = 3, 6, 4
OneGpu = Callable[..., Any]


def _mig(told: Any) -> dict[tuple[str, ...], float]:
    return {key: value for key, value in told.samples.items() if key[0].startswith("mig_")}


def test_each_instance_has_its_name_memory_and_activity(fake: Any, one_gpu: OneGpu) -> None:
    """An instance is named by its ids, told by its own UUID and profile, and measured by itself."""
    small, large = fake.add_mig(2, 7, slices=1), fake.add_mig(2, 9, 3, slices=3)
    small.memory_used, large.memory_used, large.memory_total = 111, 222, 40320 << 20
    for metric, value in {2: 20.0, 5: 30.0, 10: 40.0}.items():
        fake.gpm(2, metric, value, instance=7)
        fake.gpm(2, metric, value + 1, instance=9)
    told = one_gpu(2).at(0, 1)
    assert told.failures == {}
    assert _mig(told) == pytest.approx({
        ("mig_info", "7/0", small.uuid.decode(), "1g.10gb"): 1,
        ("mig_memory_total_bytes", "7/0"): 10 << 30,
        ("mig_memory_used_bytes", "7/0"): 111,
        ("mig_sm_active_ratio", "7/0"): 0.2,
        ("mig_tensor_active_ratio", "7/0"): 0.3,
        ("mig_dram_active_ratio", "7/0"): 0.4,
        ("mig_info", "9/3", large.uuid.decode(), "3g.40gb"): 1,
        ("mig_memory_total_bytes", "9/3"): 40320 << 20,
        ("mig_memory_used_bytes", "9/3"): 222,
        ("mig_sm_active_ratio", "9/3"): 0.21,
        ("mig_tensor_active_ratio", "9/3"): 0.31,
        ("mig_dram_active_ratio", "9/3"): 0.41,
    })  # fmt: skip


def test_the_parent_keeps_what_is_its_own_and_no_more(fake: Any, one_gpu: OneGpu) -> None:
    """Under MIG the GPU has its heat, power and errors, and neither activity nor a peak, which are its instances'."""
    whole = {key[0] for key in one_gpu(0).at(0, 1).samples}
    fake.add_mig(0, 1)
    fake.fail("utilization", NOT_SUPPORTED, 0)
    told = one_gpu(0).at(0, 1)
    assert {name for name in whole if name not in {key[0] for key in told.samples}} == {
        "utilization_ratio", "memory_controller_ratio", "peak_flops", "achievable_flops",
        "engine_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio",
        "pipe_active_ratio", "pcie_rate_bytes_per_second", "nvlink_rate_bytes_per_second",
        "sm_cycles_total", "sm_active_cycles_total", "tensor_active_cycles_total", "pipe_active_cycles_total",
    }  # fmt: skip
    assert told.gpm == ""
    assert told.failures == {}


def test_what_compute_instances_share_is_told_once(fake: Any, one_gpu: OneGpu) -> None:
    """Two compute instances of one GPU instance are two names and one memory: a sum counts nothing twice."""
    fake.add_mig(0, 1, 0, slices=3)
    fake.add_mig(0, 1, 1, slices=3)
    told = one_gpu().at(0, 1)
    assert {key[1] for key in _mig(told) if key[0] == "mig_info"} == {"1/0", "1/1"}
    assert {key[1] for key in _mig(told) if key[0] != "mig_info"} == {"1/0"}


def test_instances_come_and_go(fake: Any, one_gpu: OneGpu) -> None:
    """An instance that is made is found at the next slow round, and one that was taken down is not shown any more."""
    collector = one_gpu()
    assert _mig(collector.at(0)) == {}
    first = fake.add_mig(0, 1)
    collector.at(SLOW_SECONDS)
    fake.add_mig(0, 2)
    told = collector.at(2 * SLOW_SECONDS, 2 * SLOW_SECONDS + 1)
    assert {key[1] for key in _mig(told)} == {"1/0", "2/0"}
    first.profile = b""
    told = collector.at(3 * SLOW_SECONDS, 3 * SLOW_SECONDS + 1)
    assert {key[1] for key in _mig(told)} == {"2/0"}
    assert told.failures == {}
    fake.gpus[0].mig = 0
    told = collector.at(4 * SLOW_SECONDS, 4 * SLOW_SECONDS + 1)
    assert _mig(told) == {}
    assert ("sm_active_cycles_total",) in told.samples, "the whole GPU's activity is back"


def test_an_instance_made_again_starts_afresh(fake: Any, one_gpu: OneGpu) -> None:
    """A new instance with the number of an old one is not measured from the old one's last sample."""
    collector = one_gpu()
    profile = fake.add_mig(0, 1).profile
    assert ("mig_sm_active_ratio", "1/0") in collector.at(0, 1).samples
    fake.gpus[0].migs[0].profile = b""
    collector.at(SLOW_SECONDS)
    fake.gpus[0].migs[0].profile = profile
    assert ("mig_sm_active_ratio", "1/0") not in collector.at(2 * SLOW_SECONDS).samples
    assert ("mig_sm_active_ratio", "1/0") in collector.at(2 * SLOW_SECONDS + 1).samples


def test_an_instance_taken_down_between_two_rounds_is_told_and_looked_for(fake: Any, one_gpu: OneGpu) -> None:
    """An instance that disappears while it is read costs one collection of the instances, and no reading of the GPU."""
    fake.add_mig(0, 1)
    fake.add_mig(0, 2)
    collector = one_gpu()
    collector.at(0, 1)
    fake.gpus[0].migs[0].profile = b""
    assert list(collector.at(2).failures) == ["tachograph_gpu_mig_info of GPU 0"]
    told = collector.at(3, 4)
    assert {key[1] for key in _mig(told)} == {"2/0"}
    assert told.down == ""
    assert ("power_watts",) in told.samples
    assert told.failures == {}


def test_instances_of_a_part_without_gpm_have_memory(fake: Any, one_gpu: OneGpu) -> None:
    """An A100 has MIG and no GPM: its instances have their memory, and the reason is logged once."""
    fake.gpus[0].gpm = 0
    fake.add_mig(0, 1)
    told = one_gpu().at(0, 1)
    assert {key[0] for key in _mig(told)} == {"mig_info", "mig_memory_total_bytes", "mig_memory_used_bytes"}
    assert (told.gpm, told.failures) == ("not_supported", {})
    assert fake.called("gpm_support") == 1


def test_instances_that_may_not_be_listed_are_a_failure(fake: Any, one_gpu: OneGpu) -> None:
    """Without permission to list instances their families are absent, which is logged, and the GPU is read."""
    fake.add_mig(0, 1)
    fake.fail("mig_devices", NO_PERMISSION)
    told = one_gpu().at(0, 1)
    assert _mig(told) == {}
    assert not told.family("peak_flops"), "what a rank there computes on is a slice all the same"
    assert told.failures == {"tachograph_gpu_mig_info of GPU 0": "no permission"}
    assert ("power_watts",) in told.samples


@pytest.mark.parametrize(
    ("gpu_mebibytes", "mebibytes", "profile"),
    [
        pytest.param(81559, 9984, "1g.10gb", id="H100"),
        pytest.param(81559, 20096, "1g.20gb", id="H100, twice the memory"),
        pytest.param(81559, 40320, "3g.40gb", id="H100, three slices"),
        pytest.param(40960, 4864, "1g.5gb", id="A100"),
        pytest.param(24258, 5952, "1g.6gb", id="A30"),
        pytest.param(143771, 16384, "1g.18gb", id="H200"),
        pytest.param(183359, 22656, "1g.23gb", id="B200"),
    ],
)
def test_the_profile_is_named_as_nvidia_smi_names_it(
    fake: Any, one_gpu: OneGpu, gpu_mebibytes: int, mebibytes: int, profile: str
) -> None:
    """A profile is its slices and its share of the part's memory in eighths, less what the driver keeps of it."""
    fake.gpus[0].memory_total = gpu_mebibytes << 20
    fake.add_mig(0, 1, slices=int(profile[0])).memory_total = mebibytes << 20
    assert [key[3] for key in _mig(one_gpu().at(0)) if key[0] == "mig_info"] == [profile]


def test_instances_are_found_where_the_whole_gpus_memory_is_not_to_be_seen(fake: Any, one_gpu: OneGpu) -> None:
    """In a container without CAP_SYS_ADMIN; a profile, which is named by its share of that memory, has no name then."""
    fake.add_mig(0, 1)
    fake.fail("memory_v2", NO_PERMISSION, 0)
    assert [key[3] for key in _mig(one_gpu().at(0)) if key[0] == "mig_info"] == [""]
