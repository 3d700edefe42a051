"""Check `checkpoints`: whether the checkpoint folder can be written, holds enough, and is fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tachograph.preflight import limited
from tachograph.preflight.finding import FAIL, WARN, Conclusion, Facts, Measurement, PreflightFinding
from tachograph.preflight.model_memory import checkpoint_bytes
from tachograph.preflight.options import PreflightOptions
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.preflight.speeds import minority, slow
from tachograph.text.humanize import gibibytes, span

WORDS = {
    "missing": ("does not exist", "create it, or mount what it is on"),
    "not_a_folder": ("is not a folder", "name a folder"),
    "read_only": ("is read-only", "mount it for writing"),
    "full": ("is full", "remove old checkpoints, or take another folder"),
    "quota": ("has no quota left for this user", "remove old checkpoints, or ask for more"),
    "permission": ("may not be written by this user", "chown or chmod it, or run as its owner"),
    "stale": ("is a stale handle of a network filesystem", "mount it again"),
    "late": ("does not answer", "look at its server and its mount: df hangs there, too"),
}
TOLERANCE = 0.5
"""Storage is shared, so that only half of the others' speed says something."""
FEW_INODES = 1000
LONGEST_SAVE = 600.0
"""Seconds that ranks wait for one that saves, before NCCL's watchdog ends them."""
SLOWEST = 10e6
"""Bytes a second that any disk writes."""


def _missing(options: PreflightOptions) -> str:
    return "" if options.checkpoint_dir else "give its folder: --checkpoint-dir DIR"


def measure(site: PreflightSite) -> Facts:
    """Return what one process of each node finds in the folder; the other ranks of the node find nothing."""
    if site.local_rank:
        return {}
    asked = {"folder": site.options.checkpoint_dir, "size": site.options.probe_size}
    try:
        return limited.in_process("folder_probe", asked, site.options.limit * 0.9)
    except limited.Late:
        return {"problem": "late", "detail": "", "free": None, "inodes": None, "write": None, "read": None, "kind": ""}


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name the nodes where the folder is wrong, too small or slow."""
    found = {rank: one for rank, one in facts.items() if one}
    findings = [*_wrong(found, site), *_other_kind(found, site)]
    good = {rank: one for rank, one in found.items() if not one["problem"]}
    size = site.options.checkpoint_size or checkpoint_bytes(site.options)
    if good:
        findings += [*_room(good, site, size), *_slow(good, site), *_too_slow(good, site, size)]
    measured = [
        Measurement(f"checkpoint_{way}_bytes_per_second", one[way], rank)
        for rank, one in good.items()
        for way in ("write", "read")
        if one[way] is not None
    ]
    return Conclusion(_summary(good, site, size), findings, measured)


def _wrong(found: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    by_problem: dict[tuple[str, str], list[int]] = {}
    for rank, one in found.items():
        problem = one["problem"]
        if not problem and one["free"] < site.options.probe_size and not one["write"]:
            problem = "full"
        if problem:
            by_problem.setdefault((problem, one["detail"]), []).append(rank)
    for (problem, detail), ranks in by_problem.items():
        what, then = WORDS.get(problem, (f"cannot be used: {detail}", "look at the kernel's log there"))
        if problem == "full":
            what += f": {found[ranks[0]]['free'] or 0:,} bytes free"
        where = f" on {_nodes(ranks, site)}"
        yield PreflightFinding(FAIL, f"{site.options.checkpoint_dir} {what}{where}", then, tuple(ranks))


def _nodes(ranks: list[int], site: PreflightSite) -> str:
    nodes = sorted({site.node_of.get(rank, site.node) for rank in ranks})
    everywhere = len(nodes) == len(set(site.node_of.values())) > 1
    return "every node" if everywhere else f"node {', '.join(nodes)}"


def _other_kind(found: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    kinds = {rank: one["kind"] for rank, one in found.items() if one["kind"]}
    for kind, ranks in minority(kinds).items():
        usual = sorted(set(kinds.values()) - {kind})
        what = f"{site.options.checkpoint_dir} is on {kind} on {_nodes(ranks, site)}, elsewhere on {', '.join(usual)}"
        yield PreflightFinding(FAIL, what, "mount the shared filesystem there, too", tuple(ranks))


def _room(good: Mapping[int, Facts], site: PreflightSite, size: float | None) -> Iterator[PreflightFinding]:
    least = min(good, key=lambda rank: good[rank]["free"])
    free = good[least]["free"]
    keep = site.options.keep
    if size and free < size * keep and free >= site.options.probe_size:
        what = (
            f"{site.options.checkpoint_dir} has room for {int(free // size)} of {keep} checkpoints: "
            f"{gibibytes(free)} GiB free, each takes {gibibytes(size)} GiB"
        )
        yield PreflightFinding(
            FAIL, what, "remove old checkpoints, take another folder, or keep fewer: --keep", (least,)
        )
    for rank, one in good.items():
        if one["inodes"] is not None and one["inodes"] < FEW_INODES:
            what = f"{site.options.checkpoint_dir} has {one['inodes']} inodes left on {_nodes([rank], site)}"
            yield PreflightFinding(FAIL, what, "remove small files there: df -i", (rank,))


def _slow(good: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    for way in ("write", "read"):
        speeds = {rank: one[way] for rank, one in good.items() if one[way]}
        for rank, share in slow(speeds, TOLERANCE).items():
            does = "writes to" if way == "write" else "reads from"
            what = f"{_nodes([rank], site)} {does} {site.options.checkpoint_dir} at {share:.0%} of the others' speed"
            yield PreflightFinding(WARN, what, "look at its network, and at who else uses it now", (rank,))


def _too_slow(good: Mapping[int, Facts], site: PreflightSite, size: float | None) -> Iterator[PreflightFinding]:
    """Name the nodes whose save takes longer than the others wait; of an unknown size, those slower than a disk."""
    share = size / len(good) if size else SLOWEST * LONGEST_SAVE
    ranks = [rank for rank, one in good.items() if one["write"] and share / one["write"] > LONGEST_SAVE]
    if not ranks:
        return
    speed = min(good[rank]["write"] for rank in ranks)
    what = f"{_nodes(ranks, site)} writes to {site.options.checkpoint_dir} at {speed / 1e6:,.0f} MB/s"
    then = "give --checkpoint-size to see how long a save takes; look at the folder's server"
    if size:
        what = (
            f"{_nodes(ranks, site)} takes {span(share / speed)} for its share of a checkpoint of "
            f"{gibibytes(size)} GiB, at {speed / 1e6:,.0f} MB/s to {site.options.checkpoint_dir}"
        )
        then = "take a faster folder, save asynchronously, or give the collectives a longer timeout"
    yield PreflightFinding(WARN, what, then, tuple(ranks))


def _summary(good: Mapping[int, Facts], site: PreflightSite, size: float | None) -> str:
    if not good:
        return f"{site.options.checkpoint_dir}"
    free = min(one["free"] for one in good.values())
    text = f"{gibibytes(free)} GiB free"
    speeds = [one["write"] for one in good.values() if one["write"]]
    if speeds:
        text += f", written at {min(speeds) / 1e6:,.0f} MB/s by a node"
        if size:
            text += f": {span(size / len(good) / min(speeds))} for a checkpoint of {gibibytes(size)} GiB"
    return text


CHECK = PreflightCheck("checkpoints", "checkpoint folder", measure, conclude, _missing)
