"""Check `group`: whether all ranks can form a process group, gloo on CPUs and NCCL on GPUs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

from tachograph.preflight.exchange import open_store
from tachograph.preflight.finding import FAIL, Conclusion, Facts, Measurement, PreflightFinding
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.text.humanize import duration

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}

PATIENCE = 20
"""Limits that NCCL waits for a collective: at its own timeout it ends the process, before that could say anything."""


def backend(site: PreflightSite) -> str:
    """Return the backend for this rank's device."""
    return BACKENDS[site.device.partition(":")[0]]


def measure(site: PreflightSite) -> Facts:
    """Form the group and sum a number over all ranks; return the seconds and the sum."""
    import torch
    from torch import distributed

    began = time.monotonic()
    store = open_store(site.rank, site.world_size, site.options.limit, host=False)
    distributed.init_process_group(
        backend(site),
        store=distributed.PrefixStore("tachograph-preflight-group", store),
        rank=site.rank,
        world_size=site.world_size,
        timeout=timedelta(seconds=site.options.limit * PATIENCE),
    )
    number = torch.tensor([float(site.rank + 1)], device=site.device)
    distributed.all_reduce(number)
    total = number.item()
    site.group = True
    return {"seconds": time.monotonic() - began, "sum": total}


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Say how long it took, and who has a wrong sum."""
    expected = site.world_size * (site.world_size + 1) / 2
    wrong = [rank for rank, one in facts.items() if one["sum"] != expected]
    findings = []
    if wrong:
        what = f"the sum over all ranks is wrong on {site.who(wrong)}"
        findings.append(PreflightFinding(FAIL, what, "NCCL_DEBUG=INFO shows the transports in use", tuple(wrong)))
    slowest = max(one["seconds"] for one in facts.values())
    measured = [Measurement("group_seconds", one["seconds"], rank) for rank, one in facts.items()]
    return Conclusion(f"{site.world_size} ranks over {backend(site)} in {duration(slowest)}", findings, measured)


CHECK = PreflightCheck(
    "group", "process group of all ranks", measure, conclude, needs_torch=True, needs_ranks=True, grouped=True
)
