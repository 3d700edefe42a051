"""`tachograph preflight`: what would stop or slow a run on these nodes, found before it starts."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from tachograph.command_line import versioned_json
from tachograph.preflight import (
    checkpoint_folder,
    clocks,
    collectives,
    compute,
    devices,
    gpus,
    limited,
    loader,
    memory_bandwidth,
    memory_budget,
    node_limits,
    options,
    pairs,
    process_group,
    rendezvous,
    text,
    textfile,
    user_model,
    variables,
    versions,
)
from tachograph.preflight.checklists import answered
from tachograph.preflight.exchange import NoExchange, join
from tachograph.preflight.finding import FAIL, WARN, CheckReport, Measurement
from tachograph.preflight.options import PreflightOptions
from tachograph.preflight.own_output import own_output
from tachograph.preflight.runner import Leader, follow
from tachograph.preflight.site import CPU, PreflightCheck, PreflightSite, placed
from tachograph.text.printable import printable
from tachograph.text.wrapping import fitted

CHECKS: tuple[PreflightCheck, ...] = (
    versions.CHECK,
    variables.CHECK,
    rendezvous.CHECK,
    node_limits.CHECK,
    clocks.CHECK,
    gpus.CHECK,  # before anything of ours uses them
    checkpoint_folder.CHECK,
    memory_budget.CHECK,
    process_group.CHECK,
    compute.CHECK,
    memory_bandwidth.CHECK,
    collectives.CHECK,
    pairs.CHECK,
    loader.CHECK,
    user_model.CHECK,
)
END_SECONDS = 5.0


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    try:
        place = placed()
        given = options.parse(arguments, [check.name for check in CHECKS], quiet=bool(place and place[0]))
    except SystemExit as end:
        return int(end.code or 0)
    except ValueError as error:
        return _refused(str(error), 2)
    if place and place[2] and not given.torch and not given.alone:
        return 0  # the node's first rank checks it; without PyTorch there is nothing to do together
    try:
        site = _site(given, place)
    except ValueError as error:
        return _refused(str(error), 2)
    except OSError as error:
        return _refused(str(error), 1)
    checks = [
        check for check in CHECKS if (not given.only or check.name in given.only) and check.name not in given.skip
    ]
    with own_output() as out:
        return _follow(site, checks) if site.rank else _lead(site, checks, out)


def _refused(why: str, status: int) -> int:
    sys.stderr.write(printable(f"tachograph preflight: {why}") + "\n")
    return status


def _site(given: PreflightOptions, place: tuple[int, int, int, int] | None) -> PreflightSite:
    """Return where this process is; raise ValueError for what cannot be, OSError where others cannot be met."""
    problem = "--no-torch is given" if not given.torch else devices.torch_problem()
    if problem and given.torch and place is not None and not given.alone:
        raise OSError(f"rank {place[0]} cannot meet the others: {problem}; --alone checks this node without them")
    if problem or place is None or given.alone:
        used = (CPU,) if problem else devices.devices(given.device, None)
        return PreflightSite(given, NoExchange(), torch_problem=problem, devices=used)
    rank, world_size, local_rank, local_world_size = place
    used = devices.devices(given.device, local_rank)
    exchange = join(rank, world_size, given.join_limit)
    return PreflightSite(
        given, exchange, rank, world_size, local_rank, local_world_size, under_launcher=True, devices=used
    )


def _follow(site: PreflightSite, checks: Sequence[PreflightCheck]) -> int:
    """Do what rank 0 asks for; the status of the whole is rank 0's, or another would end it before it has spoken."""
    try:
        end = follow(site, checks)
    except (TimeoutError, ConnectionError, RuntimeError):
        return _refused(f"rank {site.rank} has not heard of rank 0 any more", 1)
    if site.local_rank == 0:
        site.node_of = {int(rank): node for rank, node in end["nodes"].items()}
        site.local_rank_of = {int(rank): local for rank, local in end["local_ranks"].items()}
        measured = [Measurement(one[0], one[1], one[2], tuple(map(tuple, one[3]))) for one in end["measured"]]
        _write(site, measured, passed=end["passed"])
    _leave(site, 0)
    return 0


def _lead(site: PreflightSite, checks: Sequence[PreflightCheck], out: TextIO) -> int:
    given = site.options
    reports: list[CheckReport] = []

    def starting(check: PreflightCheck, number: int) -> None:
        line = f"preflight: {number} of {len(checks)}, {check.title}"
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    leader = Leader(site, checks, starting)
    began = time.monotonic()
    for report in leader.run():
        reports.append(report)
        if not given.json:
            _show(text.lines(report), out)
    failed = any(report.state == FAIL for report in reports)
    measured = [one for report in reports for one in report.measured]
    known = {"nodes": site.node_of, "local_ranks": site.local_rank_of}
    leader.end({"measured": measured, "passed": not failed, **known})
    _write(site, measured, passed=not failed)
    if given.json:
        print(versioned_json(as_object(site, reports, time.monotonic() - began)), file=out)
    else:
        if given.checklist:
            _show(text.checklist(given.checklist, reports), out)
        _show([text.verdict(reports)], out)
    out.flush()
    status = 1 if failed else 0
    _leave(site, status)
    return status


def _show(lines: Iterable[str], out: TextIO) -> None:
    print(fitted(*lines, hang=5), file=out, flush=True)


def _write(site: PreflightSite, measured: Sequence[Measurement], *, passed: bool) -> None:
    """Write this node's figures, if a file is asked for; those of all ranks together are rank 0's."""
    if site.options.textfile is None:
        return
    own = [
        one._replace(rank=site.local_rank_of[one.rank]) for one in measured if site.node_of.get(one.rank) == site.node
    ]
    try:
        textfile.write(site.options.textfile, own, passed=passed, now=time.time())
    except OSError as error:
        _refused(f"{site.options.textfile} is not written: {error.strerror}", 1)


def _leave(site: PreflightSite, status: int) -> None:
    """Take leave of the process group; if work still hangs in a thread, end at once, for it would hold up the end."""
    if site.left_behind:
        os._exit(status)
    if site.group:
        from torch import distributed

        with suppress(limited.Late, RuntimeError, ValueError):
            limited.in_thread(distributed.destroy_process_group, END_SECONDS)


def as_object(site: PreflightSite, reports: Sequence[CheckReport], seconds: float) -> dict[str, Any]:
    """Return the object that --json prints."""
    states = {report.check: report.state for report in reports}
    chosen = site.options.checklist
    return {
        "state": FAIL if FAIL in states.values() else WARN if WARN in states.values() else "ok",
        "seconds": round(seconds, 3),
        "ranks": site.world_size if site.under_launcher else None,
        "nodes": sorted(set(site.node_of.values())),
        "checks": [
            {"check": one.check, "state": one.state, "summary": one.summary, "seconds": round(one.seconds, 3)}
            for one in reports
        ],
        "findings": [
            {
                "check": report.check,
                "severity": finding.severity,
                "what": finding.what,
                "then": finding.then,
                "ranks": list(finding.ranks) if site.under_launcher else [],
                "nodes": sorted({site.node_of[rank] for rank in finding.ranks if rank in site.node_of}),
            }
            for report in reports
            for finding in report.findings
        ],
        "measured": [
            {"name": one.name, "value": one.value, "rank": one.rank, **dict(one.labels)}
            for report in reports
            for one in report.measured
        ],
        "checklist": [
            {"state": state, "item": item.text, "checks": list(item.checks)}
            for state, item in (answered(chosen, states) if chosen else ())
        ],
    }
