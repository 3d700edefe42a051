"""Check `variables`: environment variables that are misspelt, deprecated, left from debugging or not alike."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping

from tachograph.preflight.finding import FAIL, WARN, Conclusion, Facts, PreflightFinding
from tachograph.preflight.known_variables import DEPRECATED, KNOWN, LEFTOVER
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.preflight.speeds import minority

OURS = re.compile(
    r"(NCCL|TORCH|PYTORCH|GLOO|CUDA|CUDNN|CUBLAS|UCX|OMP|MKL|KMP|MASTER|TORCHELASTIC|TORCHINDUCTOR)_[A-Z0-9_]*"
)
"""Variables that are read; none of these holds a secret."""

PER_RANK = re.compile(
    r"TORCHELASTIC_.*|CUDA_VISIBLE_DEVICES|.*_(IFNAME|HCA|FILE|DIR|PATH|HOME|SOCKET|HOSTID|CACHE)|MASTER_.*|"
    r"NCCL_(IB_GID_INDEX|IB_ADDR_RANGE|NET_GDR_LEVEL|TOPO_FILE|MNNVL_(CLIQUE_ID|UUID)|PROXY_CPUSET|IGNORE_CPU_AFFINITY)|"
    r"UCX_NET_DEVICES|TORCH_CPP_LOG_LEVEL|.*_VERSION"
)
"""Variables that may differ between nodes or ranks for good reason."""

_OBSERVING = re.compile(
    r"NCCL_(DEBUG|GRAPH_DUMP|TOPO_DUMP|INSPECTOR|PROFILE|PROFILER|RAS|PROXY_DUMP|SET_THREAD|REPORT|WARN)(_\w+)?|"
    r"TORCH_NCCL_(DEBUG|DUMP|ENABLE_TIMING|EXTRA_DUMP|LOG|SHOW|TRACE|WAIT_TIMEOUT_DUMP)(_\w+)?"
)
"""Variables that change what is printed, dumped or measured alone: on one rank they are a nuisance at most."""

LIKENESS = 0.86
"""How alike two names must be for one to be a slip of the other (difflib); one letter of ten is 0.9 and more."""

MANY = re.compile(
    r"TORCHINDUCTOR_.*|TORCH_COMPILE_.*|PYTORCH_TUNABLEOP_.*|PYTORCH_TEST_.*|CUDNN_.*|UCX_.*|KMP_.*|MKL_.*"
)
"""Families of which the table has few: a name that resembles one of them may well be another."""
SURE = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "MASTER_")

SLIPS = frozenset(
    {"MASTER_ADRESS", "MASTER_ADDRESS", "MASTER_IP", "NCCL_SOCKET_IFACE", "NCCL_IFNAME", "NCCL_IB_DEVICE"}
)


def measure(site: PreflightSite) -> Facts:
    """Return the variables that PyTorch, NCCL, gloo and their libraries read."""
    del site
    return {"variables": {name: value[:200] for name, value in sorted(os.environ.items()) if OURS.fullmatch(name)}}


def misspelt(name: str) -> str:
    """Return the known variable that a name is a slip of; empty for a known name and one that resembles none."""
    if name in KNOWN or name in DEPRECATED or MANY.fullmatch(name):
        return ""
    near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.7 if name in SLIPS else LIKENESS)
    if not near or _numbered(name) == _numbered(near[0]):
        return ""
    return near[0]


def _numbered(name: str) -> str:
    """Return a name without its numbers: NCCL_FOO2 may be a sibling of NCCL_FOO1, not a slip."""
    return re.sub(r"\d+", "", name)


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name each such variable once, with its ranks."""
    holders: dict[tuple[str, str], list[int]] = {}
    for rank, one in facts.items():
        for name, value in one["variables"].items():
            holders.setdefault((name, value), []).append(rank)
    findings = [*_names(holders, site), *_values(holders, site), *_unlike(facts, site)]
    names = {name for name, _ in holders}
    return Conclusion(f"{len(names)} of PyTorch, NCCL and their libraries", findings)


def _names(holders: Mapping[tuple[str, str], list[int]], site: PreflightSite) -> Iterator[PreflightFinding]:
    by_name: dict[str, list[int]] = {}
    for (name, _), ranks in holders.items():
        by_name.setdefault(name, []).extend(ranks)
    for name, ranks in sorted(by_name.items()):
        if right := misspelt(name):
            what = f"{name} on {site.who(ranks)} is read by nothing; {right} is"
            severity = FAIL if name.startswith(SURE) else WARN
            yield PreflightFinding(severity, what, f"rename it to {right}", tuple(sorted(ranks)))
        elif name in DEPRECATED:
            new, since = DEPRECATED[name]
            what = f"{name} on {site.who(ranks)} is deprecated in {since}"
            yield PreflightFinding(WARN, what, f"set {new} instead" if new else "remove it", tuple(sorted(ranks)))


def _values(holders: Mapping[tuple[str, str], list[int]], site: PreflightSite) -> Iterator[PreflightFinding]:
    for (name, value), ranks in sorted(holders.items()):
        pattern, why = LEFTOVER.get(name, ("(?!)", ""))
        if re.fullmatch(pattern, value, re.IGNORECASE):
            what = f"{name}={value} on {site.who(ranks)}: {why}"
            yield PreflightFinding(WARN, what, "unset it for training", tuple(ranks))


def _unlike(facts: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    names = {name for one in facts.values() for name in one["variables"] if not PER_RANK.fullmatch(name)}
    for name in sorted(names):
        if misspelt(name):
            continue
        values = {rank: one["variables"].get(name, "") for rank, one in facts.items()}
        odd = minority(values)
        usual = sorted(set(values.values()) - set(odd))
        for value, ranks in sorted(odd.items()):
            shown = f"{name}={value}" if value else f"no {name}"
            others = f"; the others have {usual[0] or 'none'}" if usual else ""
            what = f"{site.who_does(ranks, 'has', 'have')} {shown}{others}"
            yield PreflightFinding(
                FAIL if name.startswith(("NCCL_", "TORCH_NCCL_")) and not _OBSERVING.fullmatch(name) else WARN,
                what,
                "set it alike on all ranks",
                tuple(ranks),
            )


CHECK = PreflightCheck("variables", "environment variables right and alike", measure, conclude)
