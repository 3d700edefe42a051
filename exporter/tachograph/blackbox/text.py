"""A verdict as an engineer on call reads it: who, why, where; then what follows from it, and what stays open."""

from __future__ import annotations

from tachograph import humanize
from tachograph.blackbox.findings import BlockedGroup, Verdict
from tachograph.blackbox.words import rank_list
from tachograph.printable import printable

MOST_CULPRITS = 20
MOST_CASCADE = 8
MOST_FILES = 8


def lines(verdict: Verdict) -> list[str]:
    """Return the lines of the text."""
    return [printable(line) for line in (*_about(verdict), *_who(verdict), *_where(verdict), *_open(verdict))]


def _about(verdict: Verdict) -> list[str]:
    found = f"{humanize.plural(len(verdict.ranks), 'rank')} of {humanize.count(verdict.world)}"
    what = ", ".join((*verdict.backends, *(f"format {version}" for version in verdict.versions)))
    return [f"Dumps of {found} in {verdict.directory}" + (f" ({what})" if what else "")]


def _who(verdict: Verdict) -> list[str]:
    if verdict.state == "unreadable":
        return ["", "No dump here can be read."]
    if not verdict.culprits:
        quiet = "Nothing is pending in these dumps." if verdict.absent else "Nothing is stuck."
        return ["", quiet if verdict.state == "moving" else "NOBODY CAN BE NAMED."]
    named = verdict.culprits
    head = {"slow": "SLOW"}.get(verdict.state, "HELD UP BY")
    made = ["", f"{head}: {rank_list(one.rank for one in named)}"]
    by_reason: dict[tuple[str, str | None, str | None], list[int]] = {}
    for one in named:
        by_reason.setdefault((one.reason, one.line, one.missed_line), []).append(one.rank)
    for (reason, line, missed), ranks in list(by_reason.items())[:MOST_CULPRITS]:
        made.append(f"  {rank_list(ranks)}: {reason}")
        if line and line not in reason:
            made.append(f"    at {line}")
        if missed and missed != line and missed not in reason:
            made.append(f"    others called it at {missed}")
    if len(by_reason) > MOST_CULPRITS:
        made.append(f"  and {len(by_reason) - MOST_CULPRITS} more: see --json")
    return made


def _where(verdict: Verdict) -> list[str]:
    made = []
    if verdict.blocked_first:
        made += ["", f"Blocked first: {_group(verdict.blocked_first)}"]
    if verdict.cascade:
        kinds: dict[str, list[BlockedGroup]] = {}
        for one in verdict.cascade:
            kinds.setdefault(one.group.rpartition(" (")[0] or one.group, []).append(one)
        more = len(kinds) - MOST_CASCADE
        made += ["Blocked by that:", *(f"  {_kind(*kind)}" for kind in list(kinds.items())[:MOST_CASCADE])]
        made += [f"  and {humanize.plural(more, 'kind')} of group more"] if more > 0 else []
    return made


def _kind(description: str, ones: list[BlockedGroup]) -> str:
    if len(ones) == 1:
        return _group(ones[0])
    return f"{description}, {len(ones)} groups: {rank_list(rank for one in ones for rank in one.waiting)} waiting"


def _group(one: BlockedGroup) -> str:
    without = f"; not there: {rank_list(one.missing)}" if one.missing else "; all its members have called it"
    return f"{one.group}, {one.operation} #{one.number}: {rank_list(one.waiting)} waiting{without}"


def _open(verdict: Verdict) -> list[str]:
    made = []
    if verdict.undecided:
        made += ["", "Not decided:", *(f"  {one.what}: {one.why}" for one in verdict.undecided)]
    if verdict.notes:
        made += ["", "Seen besides:", *(f"  {one}" for one in verdict.notes)]
    if verdict.damaged:
        made += ["", "Files with faults:"]
        made += [f"  {name}: {why}" for name, why in list(verdict.damaged.items())[:MOST_FILES]]
        more = len(verdict.damaged) - MOST_FILES
        made += [f"  and {more} more"] if more > 0 else []
    if verdict.other_attempts:
        made += ["", f"Left out, of an earlier attempt: {humanize.listed(verdict.other_attempts, MOST_FILES)}"]
    return made
