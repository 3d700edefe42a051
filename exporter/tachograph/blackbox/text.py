"""A verdict as an engineer on call reads it: who, why, where; then what follows from it, and what stays open."""

from __future__ import annotations

from collections.abc import Sequence

from tachograph.blackbox.findings import BlockedGroup, Culprit, Verdict
from tachograph.blackbox.words import rank_list
from tachograph.text import humanize
from tachograph.text.printable import printable
from tachograph.text.wrapping import wrapped

MOST_CULPRITS = 20
MOST_CASCADE = 8
MOST_FILES = 8


def lines(verdict: Verdict, width: int) -> list[str]:
    """Return the lines of the text."""
    made = (*_about(verdict), *_who(verdict), *_where(verdict), *_open(verdict))
    return list(wrapped(map(printable, made), width))


def alike(verdict: Verdict) -> list[list[Culprit]]:
    """Return the culprits, those with the same reason and line together."""
    found: dict[tuple[str, str | None, str | None], list[Culprit]] = {}
    for one in verdict.culprits:
        found.setdefault((one.reason, one.line, one.missed_line), []).append(one)
    return list(found.values())


def who(ones: Sequence[Culprit]) -> str:
    """Return ranks as they are referred to, each with its place where that is known."""
    if not any(one.place for one in ones):
        return rank_list(one.rank for one in ones)
    return humanize.listed([f"rank {one.rank}" + (f" ({one.place})" if one.place else "") for one in ones], 8)


def lines_of(one: Culprit) -> list[str]:
    """Return the lines of code that a culprit's reason does not have already."""
    made = [f"at {one.line}"] if one.line and one.line not in one.reason else []
    if one.missed_line and one.missed_line != one.line and one.missed_line not in one.reason:
        made.append(f"others called it at {one.missed_line}")
    return made


def cascade(verdict: Verdict) -> list[str]:
    """Return what the group that blocked first has blocked: a text for each kind of group."""
    kinds: dict[str, list[BlockedGroup]] = {}
    for one in verdict.cascade:
        kinds.setdefault(one.group.rpartition(" (")[0] or one.group, []).append(one)
    more = len(kinds) - MOST_CASCADE
    made = [_kind(*kind) for kind in list(kinds.items())[:MOST_CASCADE]]
    return made + ([f"and {humanize.plural(more, 'kind')} of group more"] if more > 0 else [])


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
    kinds = alike(verdict)
    for ones in kinds[:MOST_CULPRITS]:
        made += [f"  {who(ones)}: {ones[0].reason}", *(f"    {line}" for line in lines_of(ones[0]))]
    if len(kinds) > MOST_CULPRITS:
        made.append(f"  and {len(kinds) - MOST_CULPRITS} more: see --json")
    return made


def _where(verdict: Verdict) -> list[str]:
    made = []
    if verdict.blocked_first:
        made += ["", f"Blocked first: {group(verdict.blocked_first)}"]
    if verdict.cascade:
        made += ["Blocked by that:", *(f"  {one}" for one in cascade(verdict))]
    return made


def _kind(description: str, ones: list[BlockedGroup]) -> str:
    if len(ones) == 1:
        return group(ones[0])
    return f"{description}, {len(ones)} groups: {rank_list(rank for one in ones for rank in one.waiting)} waiting"


def group(one: BlockedGroup) -> str:
    """Return a group that does not get on: what it is in, and who waits for whom."""
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
