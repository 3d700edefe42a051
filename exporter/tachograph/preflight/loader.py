"""Check `loader`: how fast the user's loader is against the step, and whether each rank reads a share of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from tachograph.preflight.finding import FAIL, WARN, Conclusion, Facts, Measurement, PreflightFinding, Untyped
from tachograph.preflight.options import PreflightOptions
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.preflight.speeds import minority, slow
from tachograph.preflight.user_code import UserCodeError, call, digest, without_problems
from tachograph.text.humanize import duration, plural

BATCHES = 50
SHARE_OF_LIMIT = 0.5
FINGERPRINTS = 4
SLOWER = 0.5
QUICK_SECONDS = 0.02
"""A loader that is quicker than this is not called slow because another one is quicker."""


def _missing(options: PreflightOptions) -> str:
    return "" if options.loader else "give a function that returns it: --loader MODULE:FUNCTION"


def measure(site: PreflightSite) -> Facts:
    """Return how long batches take, how many there are for this rank, what deals them out, and hashes of the first."""
    try:
        loader = call(site.options.loader or "")
    except UserCodeError as error:
        return {"problem": str(error)}
    began = time.monotonic()
    deadline = began + site.options.limit * SHARE_OF_LIMIT
    digests: list[str] = []
    count, first, unread = 0, 0.0, 0.0
    try:
        for batch in loader:
            now = time.monotonic()
            count += 1
            first = first or now - began
            if len(digests) < FINGERPRINTS:
                digests.append(digest(batch))
            unread += time.monotonic() - now
            if count >= BATCHES or now > deadline:
                break
    except Exception as error:  # noqa: BLE001 - the user's data set
        return {"problem": f"{site.options.loader}: batch {count + 1}: {type(error).__name__}: {error}"[:500]}
    took = time.monotonic() - began - first - unread
    return {
        "problem": "",
        "batches": count,
        "first": first,
        "seconds": took / (count - 1) if count > 1 else first,
        "length": _length(loader),
        "sampler": _sampler(loader),
        "digests": [one for one in digests if one],
        "workers": int(getattr(loader, "num_workers", 0) or 0),
        "cpus": len(os.sched_getaffinity(0)),
    }


def _length(loader: Untyped) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _sampler(loader: Untyped) -> str:
    """Return the class of what deals out a map-style data set's indices; empty for an iterable one."""
    if "Iterable" in type(getattr(loader, "sampler", None)).__name__ or not hasattr(loader, "sampler"):
        return ""
    samplers = [loader.sampler, getattr(getattr(loader, "batch_sampler", None), "sampler", None), loader.batch_sampler]
    names = [type(one).__name__ for one in samplers if one is not None]
    return next((name for name in names if "Distributed" in name), names[0] if names else "")


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name the ranks that load too slowly, and say whether the data is dealt out evenly."""
    good, findings = without_problems(facts, site)
    if not good:
        return Conclusion("", findings)
    findings += [*_speed(good, site), *_shares(good, site), *_workers(good, site)]
    seconds = {rank: one["seconds"] for rank, one in good.items()}
    measured = [Measurement("loader_batch_seconds", value, rank) for rank, value in seconds.items()]
    worst = max(seconds.values())
    first = max(one["first"] for one in good.values())
    summary = f"{duration(worst)} for a batch on the slowest rank, {duration(first)} for the first"
    if site.options.step is not None:
        summary += f"; a step takes {duration(site.options.step)}"
    return Conclusion(summary, findings, measured)


def _speed(good: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    then = "more workers (num_workers), a larger prefetch_factor, cheaper transforms, faster storage"
    step = site.options.step
    late = [rank for rank, one in good.items() if step is not None and one["seconds"] > step]
    if late:
        worst = max(good[rank]["seconds"] for rank in late)
        what = f"{site.who_does(late, 'needs', 'need')} {duration(worst)} for a batch, a step takes"
        yield PreflightFinding(FAIL, f"{what} {duration(step)}: training waits for data", then, tuple(late))
    speeds = {rank: 1 / max(one["seconds"], QUICK_SECONDS) for rank, one in good.items()}
    for rank, part in ({} if step is not None else slow(speeds, SLOWER)).items():
        if rank not in site.slow_ranks:
            yield PreflightFinding(WARN, f"{site.who([rank])} loads at {part:.0%} of the others' speed", then, (rank,))


def _shares(good: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    lengths = {
        rank: "unknown" if one["length"] is None else plural(one["length"], "batch", "batches")
        for rank, one in good.items()
    }
    if len(set(lengths.values())) > 1:
        odd = minority(lengths)
        text = "; ".join(f"{value} on {site.who(ranks)}" for value, ranks in sorted(odd.items()))
        usual = sorted(set(lengths.values()) - set(odd))
        text += f", {usual[0]} on the others" if usual else ""
        then = (
            "DistributedSampler with drop_last=True, or pad: a rank that ends early leaves the others in a collective"
        )
        ranks = tuple(sorted(rank for ranks in odd.values() for rank in ranks))
        yield PreflightFinding(FAIL, f"ranks have unequal shares of the data: {text}", then, ranks)
    if len(good) < 2:
        return
    holders: dict[str, list[int]] = {}
    for rank, one in good.items():
        for each in set(one["digests"]):
            holders.setdefault(each, []).append(rank)
    same = sorted({rank for ranks in holders.values() if len(ranks) > 1 for rank in ranks})
    undealt = [rank for rank, one in good.items() if one["sampler"] and "Distributed" not in one["sampler"]]
    if same:
        what = f"{site.who_does(same, 'reads', 'read')} the same batches"
        then = "DistributedSampler, or split by rank in the data set; Lightning and Accelerate put one in by themselves"
        yield PreflightFinding(FAIL, what, then, tuple(same))
    elif undealt:
        what = f"the loader has a {good[undealt[0]]['sampler']}: every rank reads the whole data set"
        then = "DistributedSampler; Lightning, Accelerate and the Trainer put one in by themselves"
        yield PreflightFinding(WARN, what, then, tuple(undealt))


def _workers(good: Mapping[int, Facts], site: PreflightSite) -> Iterator[PreflightFinding]:
    most = max(good, key=lambda rank: good[rank]["workers"])
    one = good[most]
    processes = (one["workers"] + 1) * site.local_world_size
    if one["workers"] and processes > 2 * one["cpus"]:
        what = f"{processes} processes with loader workers share {plural(one['cpus'], 'CPU')} of a node"
        yield PreflightFinding(WARN, what, "fewer workers, or more CPUs for the job (--cpus-per-task)", (most,))


CHECK = PreflightCheck("loader", "your data loader: speed and shares", measure, conclude, _missing, needs_torch=True)
