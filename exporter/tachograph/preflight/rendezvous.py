"""Check `rendezvous`: whether ranks will find each other: MASTER_ADDR, MASTER_PORT and network interfaces."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping

from tachograph.preflight.finding import FAIL, Conclusion, Facts, PreflightFinding
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.preflight.speeds import minority
from tachograph.servers.server_address import is_loopback
from tachograph.text.humanize import suggestion

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")


def measure(site: PreflightSite) -> Facts:
    """Return MASTER_ADDR and what it resolves to here, MASTER_PORT, and the interfaces that are asked for and there."""
    del site
    address = os.environ.get("MASTER_ADDR", "")
    found: list[str] = []
    problem = ""
    if address:
        try:
            found = sorted({str(one[4][0]) for one in socket.getaddrinfo(address, None)})
        except (OSError, UnicodeError) as error:
            problem = str(getattr(error, "strerror", None) or error)
    return {
        "address": address,
        "port": os.environ.get("MASTER_PORT", ""),
        "resolved": found,
        "problem": problem,
        "asked": {name: os.environ[name] for name in INTERFACES if os.environ.get(name)},
        "interfaces": sorted({name for _, name in socket.if_nameindex()}),
    }


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name the ranks that look for the others in the wrong place."""
    findings = [*_unlike(facts, site), *_unresolved(facts, site), *_interfaces(facts, site)]
    one = next(iter(facts.values()))
    if not one["address"] and not findings:
        return Conclusion("MASTER_ADDR is not set here; a launcher sets it")
    return Conclusion(f"{one['address']}:{one['port']}", findings)


def _unlike(facts: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    for key, name in (("address", "MASTER_ADDR"), ("port", "MASTER_PORT")):
        values = {rank: one[key] for rank, one in facts.items()}
        for value, ranks in minority(values).items():
            what = f"{site.who_does(ranks, 'has', 'have')} {name}={value or 'nothing'}, others do not"
            yield PreflightFinding(FAIL, what, "start all nodes with one rendezvous address", tuple(ranks))
    port = next(iter(facts.values()))["port"]
    if port and not (port.isdecimal() and len(port) < 10 and 0 < int(port) < 1 << 16):
        yield PreflightFinding(FAIL, f"MASTER_PORT={port:.20} is no port", "choose one from 1024 to 65535")


def _unresolved(facts: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    lost: dict[str, list[int]] = {}
    for rank, one in facts.items():
        if one["problem"]:
            lost.setdefault(f"MASTER_ADDR={one['address']} does not resolve on {{}}: {one['problem']}", []).append(rank)
        elif len(set(site.node_of.values())) > 1 and any(map(is_loopback, one["resolved"])):
            lost.setdefault(
                f"MASTER_ADDR={one['address']} is {{}}'s own loopback, and there are several nodes", []
            ).append(rank)
    for what, ranks in lost.items():
        then = "name a host that every node can resolve and reach, usually that of rank 0"
        yield PreflightFinding(FAIL, what.format(site.who(ranks)), then, tuple(ranks))


def _interfaces(facts: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    wrong: dict[tuple[str, str], list[int]] = {}
    for rank, one in facts.items():
        for name, value in one["asked"].items():
            alone = len(set(site.node_of.values())) > 1 and value.lstrip("=") == "lo"
            if alone or not _matches(name, value, one["interfaces"]):
                wrong.setdefault((name, value), []).append(rank)
    for (name, value), ranks in sorted(wrong.items()):
        there = facts[ranks[0]]["interfaces"]
        what = f"{name}={value} on {site.who(ranks)} leads to no other node: there are {', '.join(there)}"
        yield PreflightFinding(FAIL, what, suggestion(value.lstrip("=^"), there), tuple(ranks))


def _matches(name: str, value: str, there: list[str]) -> bool:
    """Return whether a list of interfaces leaves any; NCCL's are prefixes, `=` asks for whole names, `^` excludes."""
    names = [part for part in re.split(",", value.lstrip("^=")) if part]
    if name == "GLOO_SOCKET_IFNAME":  # whole names, and aliases such as eth0:1
        return all(part.partition(":")[0] in there for part in names)
    exact = value.lstrip("^").startswith("=")
    hit = [one for one in there if any(one == part or (not exact and one.startswith(part)) for part in names)]
    return len(hit) < len(there) if value.startswith("^") else bool(hit)


CHECK = PreflightCheck("rendezvous", "MASTER_ADDR, MASTER_PORT and network interfaces", measure, conclude)
