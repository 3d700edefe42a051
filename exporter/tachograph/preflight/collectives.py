"""Check `collectives`: each collective by size, timed and compared with what it must give.

Bus bandwidth is that of nccl-tests (doc/PERFORMANCE.md): bytes over time, times what each link has to carry of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tachograph.preflight.devices import synchronize
from tachograph.preflight.finding import FAIL, Conclusion, Facts, Measurement, PreflightFinding, Untyped
from tachograph.preflight.process_group import backend
from tachograph.preflight.site import CPU, PreflightCheck, PreflightSite

SIZES, CPU_SIZES = (2**13, 2**20, 2**25, 2**28), (2**13, 2**17, 2**22)
REPEATS = 5
SHARE_OF_LIMIT = 0.5


class CollectiveTest(NamedTuple):
    """A collective: its name, what makes a call and the tensor it fills, what that holds, and its bus factor.

    `make` is given a flat tensor of ones times rank + 1, as many as the total bytes have; `expected` the sum of all
    ranks' numbers, the world and a rank.
    """

    name: str
    make: Callable[[Untyped, int], tuple[Callable[[], Untyped], Untyped]]
    expected: Callable[[int, int], tuple[float, float]]
    factor: Callable[[int], float]


def _all_reduce(data: Untyped, world: int) -> tuple[Callable[[], Untyped], Untyped]:
    from torch import distributed

    del world
    out = data.clone()

    def call() -> None:
        out.copy_(data)
        distributed.all_reduce(out)

    return call, out


def _broadcast(data: Untyped, world: int) -> tuple[Callable[[], Untyped], Untyped]:
    from torch import distributed

    del world
    out = data.clone()
    return lambda: distributed.broadcast(out, 0), out


def _named(new: str, old: str) -> Untyped:
    """Return a collective by the name that PyTorch 2.13 gives it, or the one before."""
    from torch import distributed

    return getattr(distributed, new, None) or getattr(distributed, old)


def _all_gather(data: Untyped, world: int) -> tuple[Callable[[], Untyped], Untyped]:
    part = data[: len(data) // world].clone()
    out = data.new_empty(len(part) * world)
    gather = _named("all_gather_single", "all_gather_into_tensor")
    return lambda: gather(out, part), out


def _reduce_scatter(data: Untyped, world: int) -> tuple[Callable[[], Untyped], Untyped]:
    whole = data[: len(data) // world * world]
    out = data.new_empty(len(whole) // world)
    scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
    return lambda: scatter(out, whole), out


def _all_to_all(data: Untyped, world: int) -> tuple[Callable[[], Untyped], Untyped]:
    from torch import distributed

    whole = data[: len(data) // world * world]
    out = data.new_empty(len(whole))
    return lambda: distributed.all_to_all_single(out, whole), out


def _sum(world: int) -> float:
    return world * (world + 1) / 2


TESTS: tuple[CollectiveTest, ...] = (
    CollectiveTest("all_reduce", _all_reduce, lambda n, _: (_sum(n), _sum(n)), lambda n: 2 * (n - 1) / n),
    CollectiveTest("all_gather", _all_gather, lambda n, _: (1, n), lambda n: (n - 1) / n),
    CollectiveTest("reduce_scatter", _reduce_scatter, lambda n, _: (_sum(n), _sum(n)), lambda n: (n - 1) / n),
    CollectiveTest("broadcast", _broadcast, lambda n, _: (1, 1), lambda n: 1.0),
    CollectiveTest("all_to_all", _all_to_all, lambda n, _: (1, n), lambda n: (n - 1) / n),
)


def measure(site: PreflightSite) -> Facts:
    """Return for each collective and size the median seconds, and which gave wrong numbers or cannot be had."""
    import torch
    from torch import distributed

    results: dict[str, dict[str, float]] = {}
    wrong: list[str] = []
    absent: dict[str, str] = {}
    sizes = CPU_SIZES if site.device == CPU else SIZES
    deadline = time.monotonic() + site.options.limit * SHARE_OF_LIMIT
    for size in sizes:
        go_on = torch.tensor([float(time.monotonic() < deadline)], device=site.device)
        distributed.all_reduce(go_on, op=distributed.ReduceOp.MIN)  # all or none: a collective alone would hang
        if not go_on.item():
            break
        data = torch.full((size // 4,), float(site.rank + 1), device=site.device)
        for test in TESTS:
            if test.name in absent:
                continue
            site.progress += 1
            call, out = test.make(data, site.world_size)
            try:
                call()
            except (RuntimeError, NotImplementedError, ValueError) as error:
                if "support" not in str(error).lower():
                    raise
                absent[test.name] = str(error).partition("\n")[0]
                continue
            synchronize(site.device)
            if (float(out.min()), float(out.max())) != tuple(map(float, test.expected(site.world_size, site.rank))):
                wrong.append(f"{test.name} of {size:,} bytes")
            results.setdefault(test.name, {})[str(size)] = _median_seconds(call, site.device)
    return {"seconds": results, "wrong": wrong, "absent": absent}


def _median_seconds(call: Callable[[], Untyped], device: str) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return sorted(times)[REPEATS // 2]


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name who got wrong numbers, and say the bandwidths; below --min-bus-bandwidth they are at fault."""
    findings = []
    for rank, one in facts.items():
        if one["wrong"]:
            what = f"{site.who([rank])} got wrong numbers from {', '.join(one['wrong'])}"
            then = "run the pairs again to find the link; NCCL_DEBUG=INFO shows the transports in use"
            findings.append(PreflightFinding(FAIL, what, then, (rank,)))
    measured = list(_bandwidths(facts, site))
    figures = [one for one in measured if dict(one.labels)["op"] == "all_reduce"]
    largest = max(figures, key=lambda one: int(dict(one.labels)["bytes"]), default=None)
    least = site.options.min_bus_bandwidth
    if largest is not None and least is not None and largest.value < least * 1e9:
        what = f"all_reduce reaches {largest.value / 1e9:,.2f} GB/s of bus bandwidth, {least:g} are asked for"
        findings.append(PreflightFinding(FAIL, what, "see pairs for a slow link; NCCL_DEBUG=INFO shows the transports"))
    summary = f"over {backend(site)}"
    if largest is not None:
        size = int(dict(largest.labels)["bytes"]) // 2**20
        summary = f"all_reduce of {size} MiB at {largest.value / 1e9:,.2f} GB/s of bus bandwidth"
    if absent := sorted({name for one in facts.values() for name in one["absent"]}):
        summary += f"; {backend(site)} has no {', '.join(absent)}"
    return Conclusion(summary, findings, measured)


def _bandwidths(facts: Mapping[int, Facts], site: PreflightSite) -> Iterator[Measurement]:
    for test in TESTS:
        sizes = {size for one in facts.values() for size in one["seconds"].get(test.name, {})}
        for size in sorted(sizes, key=int):
            seconds = max(
                one["seconds"][test.name][size] for one in facts.values() if size in one["seconds"].get(test.name, {})
            )
            value = int(size) * test.factor(site.world_size) / max(seconds, 1e-9)
            yield Measurement("bus_bandwidth_bytes_per_second", value, 0, (("op", test.name), ("bytes", size)))


CHECK = PreflightCheck(
    "collectives", "collectives by size", measure, conclude, needs_torch=True, needs_ranks=True, grouped=True
)
