"""Check `compute`: a matrix multiplication on each device, against its peers, and right to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tachograph.node.peaks import achievable_of
from tachograph.preflight.devices import device_name, fastest
from tachograph.preflight.finding import FAIL, Conclusion, Facts, Measurement, PreflightFinding, Untyped
from tachograph.preflight.site import CPU, PreflightCheck, PreflightSite
from tachograph.preflight.speeds import slow, usual
from tachograph.text.humanize import listed, percent, significant

SIZE, CPU_SIZE = 8192, 1024
SAMPLE_SECONDS = 0.2
TOLERANCE, CPU_TOLERANCE = 0.1, 0.5
EXACT_SIZE, CPU_EXACT_SIZE = 4096, 512
VECTORS = 8

Multiply: TypeAlias = Callable[[Untyped, Untyped], Untyped]


def measure(site: PreflightSite) -> Facts:
    """Return for each device its name, FLOP/s, and the types in which its products are wrong or not repeatable."""
    return {"devices": {device: _device(device) for device in site.devices}}


def _device(device: str) -> dict[str, Untyped]:
    import torch

    on_cpu = device == CPU
    size, dtype = (CPU_SIZE, torch.float32) if on_cpu else (SIZE, torch.bfloat16)
    generator = torch.Generator(device).manual_seed(1)
    left, right = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    seconds = fastest(lambda: torch.mm(left, right, out=out), device, least_seconds=SAMPLE_SECONDS)
    first = out.clone()
    torch.mm(left, right, out=out)
    return {
        "name": device_name(device),
        "flops": 2 * size**3 / seconds,
        "dtype": str(dtype).removeprefix("torch."),
        "unstable": not torch.equal(first, out),
        "wrong": wrong_types(device, torch.mm),
    }


def wrong_types(device: str, multiply: Multiply) -> list[str]:
    """Return the types in which a product of matrices of -1, 0 and 1 is not exact.

    So few of them are not 0 that each sum is a whole number below 256, which every type holds exactly, in whatever
    order it is added. Compared by Freivalds' method, in double precision, where nothing is rounded either.
    """
    import torch

    on_cpu = device == CPU
    size = CPU_EXACT_SIZE if on_cpu else EXACT_SIZE
    types = (torch.float32, torch.float64) if on_cpu else (torch.float32, torch.bfloat16, torch.float16)
    generator = torch.Generator("cpu").manual_seed(2)

    def signs(*shape: int) -> Untyped:
        return torch.randint(0, 2, shape, generator=generator) * 2 - 1

    left = signs(size, size) * (torch.randint(0, 4, (size, size), generator=generator) == 0)
    left, right, vectors = (one.to(device).double() for one in (left, signs(size, size), signs(size, VECTORS)))
    expected = left @ (right @ vectors)
    return [
        str(dtype).removeprefix("torch.")
        for dtype in types
        if not torch.equal(multiply(left.to(dtype), right.to(dtype)).double() @ vectors, expected)
    ]


def better(first: Facts, second: Facts) -> Facts:
    """Return the faster of two measurements for each device, with everything that was wrong in either."""
    found = {}
    for device, one in first["devices"].items():
        other = second["devices"].get(device, one)
        wrong = sorted({*one["wrong"], *other["wrong"]})
        unstable = one["unstable"] or other["unstable"]
        found[device] = one | {"flops": max(one["flops"], other["flops"]), "wrong": wrong, "unstable": unstable}
    return {"devices": found}


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name the devices that are slower than their peers of the same kind, and those that compute wrongly."""
    found = {(rank, device): one for rank, of in facts.items() for device, one in of["devices"].items()}
    findings: list[PreflightFinding] = []
    for (rank, device), one in found.items():
        wrong = [f"{dtype} products are not exact" for dtype in one["wrong"]]
        wrong += ["the same product differs when it is computed again"] if one["unstable"] else []
        if wrong:
            then = "leave the node out and test the device: dcgmi diag -r 3"
            findings.append(PreflightFinding(FAIL, f"{named(rank, device, site)}: {'; '.join(wrong)}", then, (rank,)))
    flops = {key: one["flops"] for key, one in found.items()}
    late = slow_peers(flops, {key: one["name"] for key, one in found.items()}, site)
    findings += [
        PreflightFinding(
            FAIL,
            f"{named(rank, device, site)} computes at {percent(part)} of its peers' speed",
            "look at its clocks, temperature and power limit, and at what else runs there",
            (rank,),
        )
        for (rank, device), part in late.items()
    ]
    measured = [
        Measurement("compute_flops", value, rank, (("device", device), ("dtype", found[rank, device]["dtype"])))
        for (rank, device), value in flops.items()
    ]
    return Conclusion(_summary(found), findings, measured, slow_ranks=frozenset(rank for rank, _ in late))


def slow_peers(
    speeds: Mapping[tuple[int, str], float], kinds: Mapping[tuple[int, str], str], site: PreflightSite
) -> dict[tuple[int, str], float]:
    """Return the devices slower than those of the same kind, each with its share of their speed."""
    late: dict[tuple[int, str], float] = {}
    for kind in sorted(set(kinds.values())):
        same = {key: speed for key, speed in speeds.items() if kinds[key] == kind and key[0] not in site.slow_ranks}
        late |= slow(same, tolerance(site, next(iter(same), (0, CPU))[1]))
    return late


def tolerance(site: PreflightSite, device: str) -> float:
    """Return how much slower than its peers a device may be; CPUs are shared with whatever else runs."""
    if site.options.slower is not None:
        return site.options.slower
    return CPU_TOLERANCE if device == CPU else TOLERANCE


def named(rank: int, device: str, site: PreflightSite) -> str:
    """Return how a person names a device."""
    if not site.under_launcher:
        return device
    return site.who([rank]) + (f" ({device})" if device != CPU else "")


def _summary(found: Mapping[tuple[int, str], Mapping[str, Untyped]]) -> str:
    parts: list[str] = []
    names: Sequence[str] = sorted({one["name"] for one in found.values()})
    for name in names:
        speeds = {key: one["flops"] for key, one in found.items() if one["name"] == name}
        best = usual(speeds)
        known = achievable_of(name).get("bf16")
        share = f", {percent(best / known)} of the best published" if known else ""
        usually = f"{significant(best / 1e12, 3)} TFLOP/s{share}"
        parts.append(f"{len(speeds)} x {name}: {usually}, worst {percent(min(speeds.values()) / best)}")
    return listed(parts)


CHECK = PreflightCheck(
    "compute", "matrix multiplication, fast and right", measure, conclude, needs_torch=True, turns=True, better=better
)
