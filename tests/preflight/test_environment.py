"""Versions, variables, rendezvous, limits and clocks: what is not alike or wrong is named once, with its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph.preflight import clocks, node_limits, rendezvous, variables, versions
from tachograph.preflight.known_variables import DEPRECATED, KNOWN, LEFTOVER
from tachograph.preflight.site import PreflightSite, numbered, placed

MakeSite = Callable[..., PreflightSite]


def of_variables(site: PreflightSite, *ranks: Mapping[str, str]) -> list[tuple[str, str, tuple[int, ...]]]:
    facts = {rank: {"variables": one} for rank, one in enumerate(ranks)}
    return [(one.severity, one.what, one.ranks) for one in variables.conclude(facts, site).findings]


def test_versions_that_differ_are_named(site: MakeSite) -> None:
    """PyTorch's fails, a library's warns, a library that only some have counts as a difference."""
    usual = {"torch": "2.13.0", "Python": "3.11.7", "numpy": "2.1", "peft": "0.1"}
    facts = {rank: {"versions": dict(usual)} for rank in range(4)}
    facts[2]["versions"]["torch"] = "2.12.1"
    facts[3]["versions"]["numpy"] = "2.2"
    del facts[1]["versions"]["peft"]
    found = versions.conclude(facts, site()).findings
    assert [(one.severity, one.what) for one in found] == [
        ("fail", "rank 2 has torch 2.12.1; the others have 2.13.0"),
        ("warn", "rank 3 has numpy 2.2; the others have 2.1"),
        ("warn", "rank 1 has peft none; the others have 0.1"),
    ]


def test_half_against_half_names_both(site: MakeSite) -> None:
    """Nobody can say which two are right; a whole node is named as such."""
    facts = {rank: {"versions": {"torch": "2.13.0" if rank < 2 else "2.12.0"}} for rank in range(4)}
    found = versions.conclude(facts, site(per_node=2)).findings
    assert [one.what for one in found] == ["node b has torch 2.12.0", "node a has torch 2.13.0"]


def test_torch_versions_are_read_without_importing_it(tmp_path: Path) -> None:
    """From version.py as releases have it; a folder without one has a PyTorch of unknown version."""
    (tmp_path / "version.py").write_text("__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\nhip = None\n")
    assert versions.torch_versions(tmp_path) == {"torch": "2.9.1+cu128", "CUDA of torch": "12.8"}
    assert versions.torch_versions(tmp_path / "none") == {"torch": "unknown"}
    assert versions.torch_versions(None) == {}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"), ("NCCL_IB_DISBALE", "NCCL_IB_DISABLE"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDELING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"), ("MASTER_ADDRESS", "MASTER_ADDR"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"), ("NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"), ("PYTORCH_ALLOC_CONFIG", "PYTORCH_ALLOC_CONF"),
    ],
)  # fmt: skip
def test_a_slip_is_found(site: MakeSite, wrong: str, right: str) -> None:
    """And named with what was meant."""
    severity = "fail" if wrong.startswith(variables.SURE) else "warn"
    assert of_variables(site(), {}, {wrong: "1"}, {}, {}) == [
        (severity, f"{wrong} on rank 1 is read by nothing; {right} is", (1,))
    ]


def test_no_known_name_is_a_slip() -> None:
    """Nor a name that resembles none, or differs from one by its number."""
    assert [name for name in (*KNOWN, *DEPRECATED, *LEFTOVER) if variables.misspelt(name)] == []
    assert variables.misspelt("NCCL_OFI_NCCL_TUNER_X") == ""
    assert variables.misspelt("TORCH_SITE_SPECIFIC") == ""
    assert variables.misspelt("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE") == ""


def test_deprecated_and_forgotten_variables_warn(site: MakeSite) -> None:
    """On all ranks alike; the value decides whether it is one for debugging."""
    own = {"NCCL_ASYNC_ERROR_HANDLING": "1", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "0"}
    found = of_variables(site(), *[own] * 4)
    assert [(severity, what.split(" on ")[0]) for severity, what, _ in found] == [
        ("warn", "NCCL_ASYNC_ERROR_HANDLING"),
        ("warn", "CUDA_LAUNCH_BLOCKING=1"),
    ]
    assert all(ranks == (0, 1, 2, 3) for _, _, ranks in found)


def test_variables_that_differ_are_named(site: MakeSite) -> None:
    """NCCL's fail, those that every rank has its own of do not count."""
    usual = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8"}
    found = of_variables(
        site(), usual, usual, {"OMP_NUM_THREADS": "8", "NCCL_SOCKET_IFNAME": "eth1"}, usual | {"OMP_NUM_THREADS": "1"}
    )
    assert found == [
        ("fail", "rank 2 has no NCCL_ALGO; the others have Ring", (2,)),
        ("warn", "rank 3 has OMP_NUM_THREADS=1; the others have 8", (3,)),
    ]


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        *((name, "warn") for name in (
            "NCCL_DEBUG_SUBSYS", "NCCL_INSPECTOR_ENABLE", "NCCL_PROFILE_EVENT_MASK", "NCCL_PROFILER_PLUGIN",
            "NCCL_RAS_ENABLE", "NCCL_TOPO_DUMP_FILE_RANK", "NCCL_SET_THREAD_NAME", "NCCL_PROXY_DUMP_SIGNAL",
            "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN",
        )),
        *((name, "") for name in ("NCCL_MNNVL_CLIQUE_ID", "NCCL_PROXY_CPUSET", "NCCL_IB_ADDR_RANGE")),
        *((name, "fail") for name in (
            "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_MAX_NCHANNELS", "NCCL_NVLS_ENABLE", "TORCH_NCCL_USE_COMM_NONBLOCKING",
        )),
    ],
)  # fmt: skip
def test_what_a_variable_of_one_rank_does_to_the_run(site: MakeSite, name: str, severity: str) -> None:
    """What is printed, dumped or measured may be asked of one rank; what decides how ranks communicate may not."""
    found = of_variables(site(), {}, {name: "1"}, {}, {})
    assert [one for one, _, _ in found] == ([severity] if severity else [])


def rendezvous_facts(**given: Any) -> dict[str, Any]:
    usual = {"address": "10.0.0.1", "port": "29500", "resolved": ["10.0.0.1"], "problem": "", "asked": {}}
    return {**usual, "interfaces": ["eth0", "eth1", "ib0", "lo"], **given}


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"address": "10.0.0.2"}, "rank 3 of b has MASTER_ADDR=10.0.0.2, others do not"),
        ({"problem": "Name or service not known"}, "does not resolve on rank 3 of b: Name or service not known"),
        ({"resolved": ["127.0.0.1"]}, "is rank 3 of b's own loopback, and there are several nodes"),
        ({"asked": {"NCCL_SOCKET_IFNAME": "enp"}}, "NCCL_SOCKET_IFNAME=enp on rank 3 of b leads to no other node"),
        ({"asked": {"NCCL_SOCKET_IFNAME": "=eth"}}, "NCCL_SOCKET_IFNAME==eth on rank 3 of b leads to no other node"),
        ({"asked": {"GLOO_SOCKET_IFNAME": "lo"}}, "GLOO_SOCKET_IFNAME=lo on rank 3 of b leads to no other node"),
    ],
)
def test_a_rendezvous_that_cannot_work_is_named(site: MakeSite, given: dict[str, Any], what: str) -> None:
    """On the rank where it is so."""
    facts = {rank: rendezvous_facts(**(given if rank == 3 else {})) for rank in range(4)}
    (found,) = rendezvous.conclude(facts, site(per_node=2)).findings
    assert what in found.what
    assert found.ranks == (3,)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "9" * 5000])
def test_what_is_no_port_is_named(site: MakeSite, port: str) -> None:
    """Once, however long it is."""
    facts = {rank: rendezvous_facts(port=port) for rank in range(2)}
    (found,) = rendezvous.conclude(facts, site(2)).findings
    assert found.what == f"MASTER_PORT={port[:20]} is no port"


@pytest.mark.parametrize(
    "asked",
    [
        {"NCCL_SOCKET_IFNAME": "eth"}, {"NCCL_SOCKET_IFNAME": "^docker,lo"}, {"NCCL_SOCKET_IFNAME": "=eth0,eth1"},
        {"GLOO_SOCKET_IFNAME": "eth0:1"}, {"GLOO_SOCKET_IFNAME": "ib0"},
    ],
)  # fmt: skip
def test_interfaces_as_nccl_and_gloo_read_them(site: MakeSite, asked: dict[str, str]) -> None:
    """Prefixes, exclusions, whole names, aliases."""
    facts = {rank: rendezvous_facts(asked=asked) for rank in range(4)}
    assert rendezvous.conclude(facts, site(per_node=2)).findings == []


def test_low_limits_are_named(site: MakeSite) -> None:
    """Docker's shared memory, a shell's open files; locked memory where there is InfiniBand alone."""
    limits: dict[str, Any] = {"files": 1024, "locked": 65536, "processes": None}
    facts = {0: {"limits": limits, "shared": [64 * 2**20, 64 * 2**20], "rdma": False}}
    found = node_limits.conclude(facts, site(1)).findings
    assert [(one.severity, one.what) for one in found] == [
        ("fail", "/dev/shm has 64 MiB on a"),
        ("warn", "a process may open 1,024 files (ulimit -n) on a"),
    ]
    facts[0] |= {"rdma": True, "shared": []}
    assert [one.what.split(" on ")[0] for one in node_limits.conclude(facts, site(1)).findings] == [
        "there is no /dev/shm", "a process may open 1,024 files (ulimit -n)",
        "a process may lock 0 MiB of memory (ulimit -l)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("offsets", "named"),
    [([0, 0.2, -0.3, 0.1], []), ([0, 10, 0, 0], [1]), ([0, -10, -10, -10], [0]), ([0, 0, -1.2, 0], [2])],
)
def test_a_clock_is_compared_with_the_median(site: MakeSite, offsets: list[float], named: list[int]) -> None:
    """Rank 0's, against which all are measured, may be the wrong one."""
    facts = {rank: {"offset": offset, "uncertainty": 0.001} for rank, offset in enumerate(offsets)}
    assert [list(one.ranks) for one in clocks.conclude(facts, site()).findings] == ([named] if named else [])


def test_what_cannot_be_known_names_nobody(site: MakeSite) -> None:
    """An answer that took 20 s may hide 10 s."""
    facts = {rank: {"offset": 0.0, "uncertainty": 0.0} for rank in range(3)} | {3: {"offset": 9.0, "uncertainty": 10.0}}
    assert clocks.conclude(facts, site()).findings == []


def test_ranks_are_placed_by_the_launcher() -> None:
    """What cannot be is an error of its own, no launcher is none."""
    assert placed({}) is None
    assert placed({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}) == (3, 8, 1, 2)
    assert placed({"RANK": "3", "WORLD_SIZE": "8"}) == (3, 8, 0, 1)
    for wrong in (
        {"RANK": "8", "WORLD_SIZE": "8"},
        {"RANK": "-1", "WORLD_SIZE": "8"},
        {"RANK": "x", "WORLD_SIZE": "8"},
    ):
        with pytest.raises(ValueError, match=r"RANK=|WORLD_SIZE="):
            placed(wrong)


def test_ranks_are_named_shortly(site: MakeSite) -> None:
    """By whole nodes where it can be."""
    assert numbered([3, 1, 2, 8]) == "ranks 1-3, 8"
    assert site(8).who([4, 5, 6, 7]) == "node b"
    assert site(8).who([1, 4, 5, 6, 7]) == "rank 1 of a, node b"
    assert site(8).who(range(8)) == "all ranks"
    assert site(4).who([2]) == "rank 2"
    assert site(1).who([0]) == "a"
