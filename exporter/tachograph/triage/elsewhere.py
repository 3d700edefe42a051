"""Other sources on a run: what exporters know themselves, the boxes of its ranks, and its logs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tachograph.blackbox.findings import Verdict
from tachograph.blackbox.text import lines_of, who
from tachograph.blackbox.verdict import analyze
from tachograph.catalog.rank import FAILURE_CATEGORIES
from tachograph.collect import collect, exporters
from tachograph.servers.prometheus_api import Prometheus, PrometheusError
from tachograph.servers.server_address import exporter_url
from tachograph.text import humanize
from tachograph.top.node_source import NodeSource, default_exporter
from tachograph.top.overview import Overview, RankRow, RunSummary, SourceError
from tachograph.triage.findings import NONE, AskedSource, QuestionAnswer, Triage, TriageFinding
from tachograph.triage.modes import MODES
from tachograph.triage.refinements import STALLED_IN, stall

STATES: Mapping[str, tuple[str, str, str]] = {
    "hung": ("page", "software", "communication_stall"),
    "dead": ("page", "software", "rank_died"),
    "failed": ("page", "software", "rank_failed"),
    "frozen": ("page", "software", "frozen"),
    "overdue": ("info", "software", "communication_stall"),
    "running": (NONE, NONE, "none"),
    "finished": (NONE, NONE, "ended"),
}
"""Severity, category and mode by the state of a run on one node, the worst first."""

MARKS: Mapping[str, tuple[str, str]] = {
    "NaN first": ("numerical", "not_finite"),
    "NaN loss": ("numerical", "not_finite"),
    "straggler": ("compute", "straggler"),
}
"""The same by the mark of a rank of a run that runs."""

ENDED = frozenset({"rank_died", "rank_failed", "run_down", "restart_loop", "out_of_memory", "killed_together",
                   "ended_early", "ended", "no_data", "communication_stall"})  # fmt: skip
"""The modes whose cause a log may know better than any figure."""


def nothing(run: str, at: float) -> Triage:
    """Return that nothing is known of a run at a time."""
    return Triage(run, at, TriageFinding(NONE, NONE, "no_data", MODES["no_data"].title))


def own() -> str:
    """Return the exporter of this node."""
    return exporter_url(default_exporter()).removesuffix("/metrics")


def of_exporters(run: str, addresses: Sequence[str]) -> Triage:
    """Return what exporters say of their part of a run; its finding is `no_data` where none answers for it."""
    found = nothing(run, time.time())
    worst = len(STATES)
    evidence: list[str] = []
    for address in addresses:
        name = f"exporter {exporters.shown(address)}"
        try:
            seen = NodeSource(address).fetch()
        except SourceError as error:
            found.sources.append(AskedSource(name, False, str(error)))
            continue
        here = next((one for one in seen.runs if one.name == run), None)
        if here is None:
            runs = humanize.listed([one.name for one in seen.runs], 8)
            found.sources.append(AskedSource(name, False, f"it has no rank of this run; it has {runs or 'no run'}"))
            continue
        found.sources.append(AskedSource(name, True, f"{here.state}, step {humanize.count(here.step)}"))
        found.ranks = max(found.ranks, here.world_size or 0)
        evidence += _evidence(run, seen)
        place = list(STATES).index(here.state) if here.state in STATES else worst
        if place < worst:
            worst, found.finding = place, _finding(here, seen)
    if evidence:
        wrong = found.finding.wrong
        found.answers = (
            QuestionAnswer("node", "What do its exporters say?", "no" if wrong else "yes", tuple(evidence)),
        )
        found.remarks.append("by exporters alone: the past, and how nodes compare, are not known")
    return found


def _finding(here: RunSummary, seen: Overview) -> TriageFinding:
    state = here.state
    severity, category, mode = STATES[state]
    ranks = [one for one in seen.ranks if one.run == here.name]
    if here.why and mode == "communication_stall":
        return _stall(here, [one for one in ranks if "culprit" in one.marks], severity)
    named = [one for one in ranks if one.weight > 4] if state != "running" else []
    marked = [(one, mark) for one in ranks for mark in one.marks if mark in MARKS]
    if state == "running" and marked:
        category, mode = MARKS[marked[0][1]]
        severity, named = "page", [one for one, mark in marked if mark == marked[0][1]]
    broken = [gpu for gpu in seen.gpus if gpu.trouble and set(gpu.ranks) & {one.rank for one in ranks}]
    if severity == NONE and broken:
        words = f"{MODES['gpu_fault'].title}: GPU {broken[0].gpu}: {'; '.join(broken[0].trouble)}"
        return TriageFinding("page", "hardware", "gpu_fault", words, ranks=tuple(map(str, broken[0].ranks)))
    words = MODES[mode].title + (f": {humanize.listed([_of_rank(one) for one in named], 8)}" if named else "")
    return TriageFinding(
        severity, category, mode, words, None, tuple(str(one.rank) for one in named),
        pid=next((one.pid for one in named if one.pid), ""),
    )  # fmt: skip


def _stall(here: RunSummary, culprits: Sequence[RankRow], severity: str) -> TriageFinding:
    """Return what a node says of a run without a step."""
    category = next((STALLED_IN.get(one.phase, "software") for one in culprits), "software")
    return TriageFinding(
        severity, category, "communication_stall", f"{stall(here.world_size or 0)}: {here.why}", None,
        tuple(str(one.rank) for one in culprits), pid=next((one.pid for one in culprits if one.pid), ""),
    )  # fmt: skip


def _of_rank(rank: RankRow) -> str:
    where = f" at {rank.where}" if rank.where else ""
    return f"rank {rank.rank} ({rank.word}, phase {rank.phase or 'unknown'}{where})"


def _evidence(run: str, seen: Overview) -> list[str]:
    own = next(one for one in seen.runs if one.name == run)
    lines = [f"{seen.source}: {own.state}, step {humanize.count(own.step)}, loss {humanize.significant(own.loss)}"]
    return lines + [f"{seen.source}: {note}" for note in seen.notes]


def addresses_of(run: str, prometheus: Prometheus) -> list[str]:
    """Return the exporters that had a rank of a run within the hour, none where Prometheus does not say."""
    try:
        found, _ = exporters.found(prometheus, run)
    except (PrometheusError, ValueError):
        return []
    return found


def add_boxes(found: Triage, addresses: Sequence[str]) -> None:
    """Add what the boxes say that the exporters have of a run: who holds it up, and at which line."""
    if not addresses:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="tachograph-triage-") as folder:
            collected = collect.collect(addresses, found.run, Path(folder) / "boxes")
            if not collected.boxes:
                found.sources.append(AskedSource("boxes", False, "no rank has left one: tachograph blackbox capture"))
                return
            verdict = analyze(Path(folder) / "boxes")
    except OSError as error:
        found.sources.append(AskedSource("boxes", False, error.strerror or type(error).__name__))
        return
    found.sources.append(AskedSource("boxes", True, f"{humanize.plural(len(collected.boxes), 'box', 'boxes')} read"))
    lines = _of_boxes(verdict)
    answer = "no" if verdict.culprits else "yes" if lines else "unknown"
    found.answers = (
        *found.answers,
        QuestionAnswer("boxes", "Does nobody hold it up, by the boxes of its ranks?", answer, tuple(lines)),
    )
    if verdict.culprits and found.finding.mode == "communication_stall" and not found.finding.ranks:
        words = f"{found.finding.words}; by their boxes: {who(verdict.culprits[:8])}: {verdict.culprits[0].reason}"
        found.finding = replace(found.finding, words=words, ranks=tuple(str(one.rank) for one in verdict.culprits[:8]))


def _of_boxes(verdict: Verdict) -> list[str]:
    lines = [f"{who([one])}: {', '.join((one.reason, *lines_of(one)))}" for one in verdict.culprits[:8]]
    return lines + [f"not decided: {one.what}: {one.why}" for one in verdict.undecided[:4]]


def add_logs(found: Triage, paths: Sequence[str]) -> None:
    """Add what logs say of the first cause: it is the finding if a run has ended or hangs, or nothing else is known."""
    from tachograph.logs.reading import Reading, read  # these need libraries of an extra of their own
    from tachograph.logs.scan import prepare
    from tachograph.logs.sources import plan
    from tachograph.logs.verdict import conclude

    reading = Reading()
    prepare()
    read(plan(paths, reading.problems), reading, lambda _: None)
    verdict = conclude(reading)
    found.sources += [AskedSource(f"log {one.name}", False, one.why) for one in reading.problems]
    if verdict.state == "unreadable":
        return
    found.sources.append(
        AskedSource("logs", True, f"{humanize.plural(reading.files, 'file')}, {humanize.plural(reading.lines, 'line')}")
    )
    if verdict.state != "cause":
        said = (
            "nothing in them is wrong" if verdict.state == "nothing_wrong" else "something failed, and nothing says why"
        )
        answer = "yes" if verdict.state == "nothing_wrong" else "unknown"
        found.answers = (*found.answers, QuestionAnswer("logs", "Are its logs clean?", answer, (said,)))
        return
    root = verdict.findings[0]
    rank = "" if root.rank is None else f"rank {root.rank}: "
    evidence = (f"{rank}{root.line}", f"{root.file}, line {root.line_number}: {root.cause}")
    found.answers = (*found.answers, QuestionAnswer("logs", "Are its logs clean?", "no", evidence))
    category = root.category
    if category not in FAILURE_CATEGORIES or found.finding.mode not in ENDED:
        return
    before = found.finding
    mode = "out_of_memory" if category == "out_of_memory" and before.mode != "restart_loop" else before.mode
    if mode in ("no_data", "ended"):
        mode = "rank_failed"
    ranks = before.ranks or (() if root.rank is None else (str(root.rank),))
    words = f"{MODES[mode].title}; its log says: {rank}{root.cause}"
    severity = before.severity if before.wrong else "page"
    found.finding = replace(
        before, severity=severity, category=category, mode=mode, words=words, ranks=ranks,
        nodes=before.nodes or tuple(root.nodes[:8]),
    )  # fmt: skip
