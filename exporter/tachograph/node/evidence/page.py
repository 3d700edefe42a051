"""The page at `/blackbox/<run>`: who holds the run up, why and at which line; then what that rests on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from shlex import quote
from string import Template

from tachograph.blackbox import served, text
from tachograph.blackbox.findings import Culprit, Verdict
from tachograph.blackbox.served import ServedRun
from tachograph.blackbox.words import rank_list
from tachograph.node.evidence.analyses import Analysis
from tachograph.node.status_page import html
from tachograph.node.status_page.html import ABSENT, Cell, name, note, plain, shown, state
from tachograph.node.status_page.page import LOOKS
from tachograph.text.humanize import age, coordinates, count, plural, utc

RANKS_SHOWN = 64
LINES_SHOWN = 24
ITEMS_SHOWN = 24
SENTENCE_LENGTH = 1200
LINE_LENGTH = 400
REASON_LENGTH = 160
AGAIN_SECONDS = 2
"""An analysis that is under way is looked for again so soon."""


@cache
def _template() -> Template:
    return html.template("tachograph.node.evidence", "page.html")


def run_page(
    run: str,
    node: str,
    now: float,
    index: ServedRun | None,
    *,
    analysis: Analysis | None = None,
    trouble: str = "",
    again: bool = False,
    peers: str = "",
    may_read: bool = True,
) -> str:
    """Return the page of a run; every text that a rank, a peer or a box chose is escaped and cut.

    `index` is what is on this node, None where the run is not known here; `trouble` is why there is no analysis, and
    with `again` it is under way: the page loads itself again. `peers` is where other exporters are looked up;
    `may_read` is whether the reader may ask for boxes and see all of them.
    """
    placed = None if analysis is None else with_places(analysis)
    sections = "" if analysis is None or placed is None else _sections(analysis, placed, index, now, peers)
    of = "" if analysis is None else f", analyzed {age(max(0.0, now - analysis.time))} ago"
    return _template().substitute(
        title=f"{plain(run)} – black box",
        run=name(run),
        node=plain(node),
        time=utc(now),
        of=of,
        index=plain(served.index_path(run), 1000),
        refresh=f'<meta http-equiv="refresh" content="{AGAIN_SECONDS}">' if again else "",
        verdict=_verdict(index, placed, trouble, again=again),
        sections=sections,
        more=_more(run, index, may_read=may_read),
    )


def with_places(analysis: Analysis) -> Verdict:
    """Return the verdict with the node, GPU, coordinates and, without a box, line of each culprit by its exporter."""
    return replace(analysis.verdict, culprits=[_placed(one, analysis) for one in analysis.verdict.culprits])


def _placed(one: Culprit, analysis: Analysis) -> Culprit:
    rank, node = analysis.ranks.get(one.rank, (None, ""))
    if rank is None:
        return one
    line = one.line or rank.where or None
    return replace(one, line=line, node=node or None, gpu=rank.gpu or None, coordinates=rank.coordinates or None)


def _verdict(index: ServedRun | None, verdict: Verdict | None, trouble: str, *, again: bool) -> str:
    if index is None:
        return _said("idle", "No rank of this run is known on this node, and no box of it is kept here.")
    if trouble or again:
        made = f"No analysis: {trouble}." if trouble else "The boxes are being fetched and analyzed."
        return _said("warn" if trouble else "idle", made + " This page looks again in a moment." * again)
    if verdict is None or verdict.state == "unreadable":
        made = "none of the boxes here can be read" if index.boxes else "no rank has left a box yet"
        return _said("idle", f"Nobody can be named: {made}. A rank leaves one when it stands still, fails or is asked.")
    if verdict.culprits:
        look = "warn" if verdict.state == "slow" else "bad"
        return "".join(_said(look, _sentence(ones)) for ones in text.alike(verdict)[: text.MOST_CULPRITS])
    if verdict.state == "stuck":
        why = "; ".join(f"{one.what}: {one.why}" for one in verdict.undecided[:2])
        return _said("warn", f"Nobody can be named. {why}")
    return _said("good", "Nothing is stuck: no operation is pending that holds anyone up.")


def _sentence(ones: Sequence[Culprit]) -> str:
    who = text.who(ones)
    return "; ".join((f"{who[0].upper()}{who[1:]}: {ones[0].reason}", *text.lines_of(ones[0])))


def _said(look: str, sentence: str) -> str:
    return f'<p class="verdict"><span class="state {look}"></span>{plain(sentence, SENTENCE_LENGTH)}</p>'


def _sections(analysis: Analysis, verdict: Verdict, index: ServedRun | None, now: float, peers: str) -> str:
    parts = (
        ("lines", "Where ranks stand", _lines(analysis)),
        ("ranks", "Ranks", _ranks(analysis, verdict, index, now)),
        ("groups", "Groups", _groups(verdict)),
        ("open", "Not decided, and not here", _open(analysis, verdict, index, peers)),
    )
    return "\n".join(
        f'<section class="{key}" aria-labelledby="{key}"><div class="head"><h2 id="{key}">{title}</h2></div>\n'
        f"{content}\n</section>"
        for key, title, content in parts
        if content
    )


def _lines(analysis: Analysis) -> str:
    """Return at which lines ranks stand, the rarest first: where one stands alone is what matters."""
    by_state = {rank: facts.where for rank, (facts, _) in analysis.ranks.items() if facts.where}
    at: defaultdict[str, list[int]] = defaultdict(list)
    for rank, where in {**by_state, **analysis.where}.items():
        at[where].append(rank)
    rows = [
        [
            Cell("Line", "wide", f"<code>{plain(where, LINE_LENGTH)}</code>"),
            Cell("Ranks", "n", count(len(ranks))),
            Cell("Which", "", plain(rank_list(ranks), LINE_LENGTH)),
        ]
        for where, ranks in sorted(at.items(), key=lambda item: (len(item[1]), item[1][0]))[:LINES_SHOWN]
    ]
    return html.table('<span class="unseen">Lines of code at which ranks stand</span>', rows) + _left(
        len(at), LINES_SHOWN
    )


def _ranks(analysis: Analysis, verdict: Verdict, index: ServedRun | None, now: float) -> str:
    named = {one.rank for one in verdict.culprits}
    known = sorted(analysis.boxes.keys() | analysis.ranks.keys(), key=lambda rank: (rank not in named, rank))
    own = {box.rank for box in index.boxes} if index is not None else set()
    rows = [_rank(rank, analysis, rank in named, index if rank in own else None, now) for rank in known[:RANKS_SHOWN]]
    return html.table('<span class="unseen">Ranks and their boxes</span>', rows) + _left(len(known), RANKS_SHOWN)


def _rank(rank: int, analysis: Analysis, named: bool, index: ServedRun | None, now: float) -> list[Cell]:
    facts, node = analysis.ranks.get(rank, (None, ""))
    box = analysis.boxes.get(rank)
    where = analysis.where.get(rank) or (facts.where if facts is not None else "")
    look = ABSENT if facts is None else state(LOOKS.get(facts.state, "idle"), facts.state)
    if named:
        look += note("holds it up")
    phase = ABSENT
    if facts is not None and facts.phase:
        since = "" if facts.phase_seconds is None else f' <span class="soft">for {age(facts.phase_seconds)}</span>'
        phase = plain(facts.phase) + since
    said = '<span class="soft">no box</span>'
    if box is not None:
        said = f"{plain(box.reason, REASON_LENGTH) or 'a box'}{note(f'{age(max(0.0, now - box.time))} ago')}"
        if index is not None:
            said = f'<a href="{plain(served.box_path(index.run, box.attempt, rank, asked=box.asked), 1000)}">{said}</a>'
    place = plain(coordinates(facts.coordinates)) if facts is not None and facts.coordinates else ABSENT
    return [
        Cell("Rank", "n", str(rank)),
        Cell("State", "", look),
        Cell("Node", "", plain(node) or ABSENT),
        Cell("GPU", "n", (plain(facts.gpu) if facts is not None else "") or ABSENT),
        Cell("Coordinates", "", place),
        Cell("Phase", "", phase),
        Cell("Step", "n", shown(facts.step if facts is not None else None, count)),
        Cell("Box", "", said),
        Cell("Stands at", "wide", f"<code>{plain(where, LINE_LENGTH)}</code>" if where else ABSENT),
    ]  # fmt: skip


def _groups(verdict: Verdict) -> str:
    made = [f"Blocked first: {text.group(verdict.blocked_first)}"] if verdict.blocked_first else []
    made += [f"Blocked by that: {one}" for one in text.cascade(verdict)]
    return _list(made)


def _open(analysis: Analysis, verdict: Verdict, index: ServedRun | None, peers: str) -> str:
    made = [f"{one.what}: {one.why}" for one in verdict.undecided]
    made += verdict.notes
    if analysis.trouble:
        made.append(f"Other nodes could not be asked: {analysis.trouble}")
    made += [f"{address} did not give its boxes: {why}" for address, why in analysis.silent.items()]
    made += [f"rank {rank}: its box did not come: {why}" for rank, why in analysis.failed.items()]
    made += [f"{file}: {why}" for file, why in verdict.damaged.items()]
    here = {rank.rank for rank in index.ranks} if index is not None else set()
    missing = set(verdict.absent) - analysis.failed.keys() - here
    if not peers and missing:
        made.append(
            f"On other nodes, whose boxes this exporter does not fetch: {rank_list(missing)}. Start it with "
            "--blackbox.peers, or use the command below"
        )
    elif peers and not analysis.trouble:
        made.append(f"{plural(analysis.exporters, 'other exporter')} asked")
    return _list(made)


def _more(run: str, index: ServedRun | None, *, may_read: bool) -> str:
    word = plain(quote(run), 300)
    made = [
        f"All boxes into a folder, and what they say: <code>tachograph blackbox collect {word} --out boxes &amp;&amp; "
        "tachograph blackbox analyze boxes</code>"
    ]
    if not may_read:
        made.append("Boxes have more for the run's owner and the site's readers: see docs/web.md")
    elif index is not None and index.ranks:
        made.append(
            f'<form method="post" action="{plain(served.capture_path(run), 1000)}"><button>Ask the ranks of this node '
            "for new boxes</button></form>"
        )
    if index is not None and index.ras_said:
        link = f' <a href="{plain(served.ras_path(run), 1000)}">Its answer</a>' if index.ras and may_read else ""
        made.append(f"NCCL RAS: {plain(index.ras_said, LINE_LENGTH)}.{link}")
    return '<ul class="plain">' + "".join(f"<li>{one}</li>" for one in made) + "</ul>"


def _list(items: Iterable[str]) -> str:
    items = list(items)
    if not items:
        return ""
    rows = "".join(f"<li>{plain(one, SENTENCE_LENGTH)}</li>" for one in items[:ITEMS_SHOWN])
    return f'<ul class="plain">{rows}</ul>{_left(len(items), ITEMS_SHOWN)}'


def _left(known: int, most: int) -> str:
    return f'<p class="soft">{known - most:,} more, not shown.</p>' if known > most else ""
