"""Peers compared: who is slow among devices, which rank or link among pairs, and whether numbers are right."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from tachograph.preflight import collectives, compute, loader, memory_bandwidth, pairs, user_model
from tachograph.preflight.pairs import Pair, culprits, rounds, slow_links
from tachograph.preflight.site import PreflightSite
from tachograph.preflight.speeds import minority, slow, usual

MakeSite = Callable[..., PreflightSite]


@pytest.mark.parametrize(
    ("speeds", "named"),
    [([1.0], []), ([1, 0.8], [1]), ([1, 0.95], []), ([1, 1, 0.5], [2]), ([0.5, 0.5, 1, 1], [0, 1]), ([0, 0, 0], []),
     ([1, 1, 1, 3], [])],
)  # fmt: skip
def test_a_slow_peer_is_below_the_upper_quartile(speeds: list[float], named: list[int]) -> None:
    """Of two the slower; one that is alone is fast does not make the others slow."""
    assert sorted(slow(dict(enumerate(speeds)), 0.1)) == named


def test_usual_and_minority() -> None:
    """Of equal counts all are odd; of one value none."""
    assert usual({0: 1, 1: 2, 2: 3, 3: 4}) == 3
    assert minority({0: "a", 1: "a", 2: "b"}) == {"b": [2]}
    assert minority({0: "a", 1: "b"}) == {"a": [0], "b": [1]}
    assert minority({0: "a"}) == minority({}) == {}


@pytest.mark.parametrize("count", range(2, 9))
def test_every_pair_has_its_turn(count: int) -> None:
    """Once, and nobody has two partners at the same time."""
    made = rounds(list(range(count)))
    assert sorted(pair for couples in made for pair in couples) == sorted(combinations(range(count), 2))
    for couples in made:
        assert len({rank for pair in couples for rank in pair}) == 2 * len(couples) >= count - 1


@pytest.mark.parametrize("count", [9, 16, 33, 1024])
def test_many_ranks_have_two_rounds_with_other_partners(count: int) -> None:
    """So each has two partners; one rests in a round of an odd number."""
    made = rounds(list(range(count)))
    assert len(made) == 2
    assert len({pair for couples in made for pair in couples}) == sum(map(len, made)) == count // 2 * 2


@pytest.mark.parametrize(
    ("ranks", "bad_ranks", "bad_pairs"),
    [
        (4, [2], []), (4, [], [(1, 2)]), (4, [0], [(1, 2)]), (4, [], []), (3, [1], []), (8, [3, 5], []),
        (8, [], [(0, 1), (2, 3)]), (64, [17], []), (64, [17, 40], []), (2, [], [(0, 1)]),
    ],
)  # fmt: skip
def test_the_culprit_is_a_rank_or_a_pair(ranks: int, bad_ranks: list[int], bad_pairs: list[Pair]) -> None:
    """By all partners, or by each other alone."""
    tested = [pair for couples in rounds(list(range(ranks))) for pair in couples]
    bad = [pair for pair in tested if set(pair) & set(bad_ranks) or pair in bad_pairs]
    assert culprits(bad, tested) == (bad_ranks, bad_pairs)


def test_a_link_is_slow_by_latency_or_by_bandwidth() -> None:
    """With floors: a loaded CPU or one more switch is no fault."""
    links = list(combinations(range(4), 2))
    latency, bandwidth = dict.fromkeys(links, 1e-5), dict.fromkeys(links, 10e9)
    assert slow_links(latency, bandwidth, "nccl") == []
    assert slow_links(latency | {(0, 1): 5e-5}, bandwidth, "nccl") == []
    assert slow_links(latency | {(0, 1): 1e-3}, bandwidth, "nccl") == [(0, 1)]
    assert slow_links(latency | {(0, 1): 1e-3}, bandwidth, "gloo") == []
    assert slow_links(latency, bandwidth | {(2, 3): 4e9}, "nccl") == [(2, 3)]
    assert slow_links(latency, bandwidth | {(2, 3): 4e9}, "gloo") == []


def test_pairs_of_a_slow_rank_are_not_judged(site: MakeSite) -> None:
    """It computes slowly, so its messages are late, too."""
    right = {"latency": 1e-5, "bandwidth": 1e9, "right": True}
    facts: dict[int, Any] = {rank: {"pairs": {}} for rank in range(4)}
    for first, second in combinations(range(4), 2):
        figures = right | ({"bandwidth": 1e7} if 2 in (first, second) else {})
        for rank in (first, second):
            facts[rank]["pairs"][f"{first}-{second}"] = figures
    here = site()
    assert [one.ranks for one in pairs.conclude(facts, here).findings] == [(2,)]
    here.slow_ranks = frozenset({2})
    assert pairs.conclude(facts, here).findings == []
    for rank in (0, 3):
        facts[rank]["pairs"]["0-3"] = right | {"right": rank == 0}
    (found,) = pairs.conclude(facts, here).findings
    assert found.what == "messages between rank 0 and rank 3 came wrong"


def device(name: str = "NVIDIA H100 80GB HBM3", **given: Any) -> dict[str, Any]:
    usual = {"name": name, "flops": 700e12, "dtype": "bfloat16", "unstable": False, "wrong": [], "bandwidth": 2e12}
    return {**usual, **given, "compared": given.get("bandwidth", 2e12)}


def test_devices_are_compared_with_their_kind(site: MakeSite) -> None:
    """Under a launcher by rank, by hand by device; memory of one that computes slowly is not judged again."""
    facts = {rank: {"devices": {f"cuda:{rank}": device()}} for rank in range(4)}
    facts[1]["devices"]["cuda:1"] = device(flops=500e12, bandwidth=1e12)
    facts[3]["devices"]["cuda:3"] = device("NVIDIA A100-SXM4-80GB", flops=250e12)
    here = site()
    found = compute.conclude(facts, here)
    assert [(one.what, one.ranks) for one in found.findings] == [
        ("rank 1 (cuda:1) computes at 71% of its peers' speed", (1,))
    ]
    assert "88% of the best published" in found.summary
    here.slow_ranks |= found.slow_ranks
    assert memory_bandwidth.conclude(facts, here).findings == []
    alone = {0: {"devices": {f"cuda:{index}": device(bandwidth=1e12 if index == 2 else 2e12) for index in range(4)}}}
    (found,) = memory_bandwidth.conclude(alone, site(1)).findings
    assert found.what == "cuda:2 copies its memory at 50% of its peers' speed"


def test_wrong_numbers_are_named(site: MakeSite) -> None:
    """Of a product, and of a collective."""
    facts = {rank: {"devices": {f"cuda:{rank}": device()}} for rank in range(4)}
    facts[2]["devices"]["cuda:2"] = device(wrong=["bfloat16"], unstable=True)
    (found,) = compute.conclude(facts, site()).findings
    assert found.what.startswith("rank 2 (cuda:2): bfloat16 products are not exact; the same product differs")
    seconds = {"all_reduce": {"8192": 1e-4, "4194304": 1e-3}}
    of = {rank: {"seconds": seconds, "wrong": [], "absent": {}} for rank in range(4)}
    conclusion = collectives.conclude(of, site(min_bus_bandwidth=6.0))
    assert conclusion.findings == []
    assert conclusion.summary == "all_reduce of 4 MiB at 6.29 GB/s of bus bandwidth"
    of[1]["wrong"] = ["all_reduce of 8,192 bytes"]
    found = collectives.conclude(of, site(min_bus_bandwidth=7.0)).findings
    assert [one.what for one in found] == [
        "rank 1 got wrong numbers from all_reduce of 8,192 bytes",
        "all_reduce reaches 6.29 GB/s of bus bandwidth, 7 are asked for",
    ]


BIT = """
import torch
from tachograph.preflight.compute import wrong_types

def broken(left, right):
    product = left @ right
    if left.dtype == torch.float32:
        product.view(torch.int32)[300, 17] ^= 1 << 20
    return product

print(wrong_types("cpu", torch.mm), wrong_types("cpu", broken))
"""


@pytest.mark.slow
@pytest.mark.torch
def test_one_flipped_bit_is_found(torch_programs: Any) -> None:
    """In one element of a quarter of a million."""
    assert torch_programs(BIT).end() == "[] ['float32']\n"


def batches(**given: Any) -> dict[str, Any]:
    usual = {
        "problem": "", "batches": 50, "first": 0.5, "seconds": 0.1, "length": 100, "sampler": "DistributedSampler",
        "workers": 0, "cpus": 8,
    }  # fmt: skip
    return {**usual, **given}


@pytest.mark.parametrize(
    ("given", "options", "what"),
    [
        ({}, {"step": 0.2}, []),
        ({"seconds": 0.3}, {"step": 0.2}, ["rank 3 needs 300 ms for a batch, a step takes 200 ms: training waits"]),
        ({"seconds": 0.3}, {}, ["rank 3 loads at 33% of the others' speed"]),
        (
            {"length": 99},
            {},
            ["ranks have unequal shares of the data: 99 batches on rank 3, 100 batches on the others"],
        ),
        ({"length": None}, {}, ["ranks have unequal shares of the data: unknown on rank 3, 100 batches"]),
        ({"digests": ["0"]}, {}, ["ranks 0, 3 read the same batches"]),
        ({"sampler": "RandomSampler"}, {}, ["the loader has a RandomSampler: every rank reads the whole data set"]),
        ({"workers": 16}, {}, ["68 processes with loader workers share 8 CPUs of a node"]),
        ({"problem": "ValueError: x"}, {}, ["on rank 3 ValueError: x"]),
    ],
)
def test_a_loader_is_judged(site: MakeSite, given: dict[str, Any], options: dict[str, Any], what: list[str]) -> None:
    """Its speed, its shares and its workers."""
    facts = {rank: batches(digests=[str(rank)]) for rank in range(3)} | {3: batches(**{"digests": ["3"], **given})}
    found = loader.conclude(facts, site(**options)).findings
    assert [one.what[: len(text)] for one, text in zip(found, what, strict=True)] == what


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, []),
        ({"batch_norms": ["a", "b"]}, ["2 BatchNorm layers would keep statistics of each rank alone: a, b"]),
        ({"unused": ["w"]}, ["1 parameter get no gradient: w"]),
        ({"unused": ["w"], "finds_unused": True}, []),
        ({"unused": [], "finds_unused": True}, ["find_unused_parameters=True, and every parameter gets a gradient"]),
    ],
)
def test_a_model_is_judged(site: MakeSite, given: dict[str, Any], what: list[str]) -> None:
    """By what all ranks have in common."""
    one = {
        "problem": "", "structure": "x", "parameters": 1e9, "batch_norms": [], "finds_unused": None, "unused": [],
        "not_run": "", **given,
    }  # fmt: skip
    found = user_model.conclude(dict.fromkeys(range(4), one), site()).findings
    assert [each.what[: len(text)] for each, text in zip(found, what, strict=True)] == what


def test_a_model_of_another_shape_is_named(site: MakeSite) -> None:
    """Its gradients would be added to others' parameters."""
    one = {
        "problem": "", "structure": "x", "parameters": 1e9, "batch_norms": [], "finds_unused": None, "unused": [],
        "not_run": "",
    }  # fmt: skip
    facts = {rank: one | {"structure": "y" if rank == 1 else "x"} for rank in range(4)}
    assert [finding.ranks for finding in user_model.conclude(facts, site()).findings] == [(1,)]
