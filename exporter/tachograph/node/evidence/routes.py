"""The exporter's HTTP side of the boxes: the page of a run, its index, its boxes, and the request for new ones.

| | |
|---|---|
| `GET /blackbox/<run>` | the page: who holds the run up, by the boxes of all nodes that can be reached |
| `GET /api/blackbox/<run>` | which boxes and ranks of the run are on this node (`tachograph.blackbox.served`) |
| `GET /api/blackbox/<run>/<attempt>/rank-<r>.json` | a box that its rank left, as it sent it |
| `GET /api/blackbox/<run>/<attempt>/rank-<r>.asked.json` | the one that was requested last |
| `GET /api/blackbox/<run>/ras` | what NCCL's RAS service said at the last capture |
| `POST /api/blackbox/<run>/capture` | asks the ranks here for new boxes, with `?ras=1` NCCL's RAS service as well |

Whoever may not read what is private of a run gets boxes without it, and neither of the last two.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from aiohttp import web

from tachograph.blackbox import served
from tachograph.blackbox.served import CAPTURED_TOGETHER_SECONDS, ServedBox, ServedRank, ServedRun
from tachograph.node.clock import Clock
from tachograph.node.evidence import nccl_ras
from tachograph.node.evidence.analyses import Analyses, Analysis, AnalysisError, Asker, BusyError
from tachograph.node.evidence.nccl_ras import RasAnswer, RasError
from tachograph.node.evidence.request import Request
from tachograph.node.ranks.boxes import Box
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.web.private import public_box
from tachograph.node.web.readers import STRANGER, Reader
from tachograph.node.web.server import ReaderOf
from tachograph.text.humanize import plural
from tachograph.wire import BOX_ASKED_FOR

PATIENCE_SECONDS = 4.0
"""An analysis that takes longer is shown by a page that loads itself again: no answer may take ten seconds."""

MOST_CAPTURES = 256
RAS_KEPT = 4
"""Answers of RAS that are kept, the newest, of different runs."""

CLOSED = {
    # Ranks choose much of the text on the page; if any of it ever escaped its quotes, it could do nothing.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@dataclass
class _Captured:
    """A request to the ranks of a run: when, by both clocks."""

    at: float
    wall: float


@dataclass
class _Ras:
    """The state of asking NCCL's RAS service for a run of a user."""

    owner: int | None
    said: str
    answer: RasAnswer | None = None


class Evidence:
    """The pages of the boxes in a rank table; `peers` names other exporters, `ras` is the address of NCCL's service."""

    def __init__(
        self,
        table: RankTable,
        clock: Clock,
        node: str,
        *,
        peers: str = "",
        ras: tuple[str, int] | None = None,
        analyses: Analyses | None = None,
    ) -> None:
        self._table, self._clock, self._node = table, clock, node
        self._peers, self._ras_address = peers, ras
        self._given_analyses = analyses
        self._captured: dict[str, _Captured] = {}
        self._ras: dict[str, _Ras] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._reader_of: ReaderOf = lambda _: STRANGER

    @property
    def _analyses(self) -> Analyses:
        if self._given_analyses is None:
            self._given_analyses = Analyses(self._clock.monotonic, self._clock.wall)
        return self._given_analyses

    def routes(self, reader_of: ReaderOf) -> Sequence[web.RouteDef]:
        """Return the routes; what of a box a reader sees depends on who that is."""
        self._reader_of = reader_of
        api = served.ROOT + "{run:.+}"
        return (
            web.post(api + "/capture", self._capture),
            web.get(api + r"/{attempt:\d{1,9}}/rank-{rank:\d{1,7}}{asked:(?:\.asked)?}.json", self._box),
            web.get(api + "/ras", self._ras_answer),
            web.get(api, self._index),
            web.get(served.PAGE_ROOT + "{run:.+}", self._page),
        )

    async def close(self) -> None:
        """End what is under way."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._given_analyses is not None:
            await self._given_analyses.close()

    def index(self, run: str) -> ServedRun | None:
        """Return what is here of a run, None if it is not known."""
        boxes = self._table.boxes.of(run)
        ranks = [rank for rank in self._table.ranks() if rank.key[0] == run]
        if not boxes and not ranks:
            return None
        ras = self._ras_of(run)
        return ServedRun(
            run,
            self._node,
            self._clock.wall(),
            max((rank.hello.world_size for rank in ranks), default=0),
            tuple(self._served(box) for box in boxes),
            tuple(map(self._rank, ranks)),
            ras.answer.kind if ras is not None and ras.answer is not None else "",
            ras.said if ras is not None else "",
        )

    def _served(self, box: Box) -> ServedBox:
        rank = self._table.rank(box.run, box.rank)
        went_on = rank is not None and rank.progress is not None and rank.progress > box.came
        past = rank is not None and (rank.hello.attempt > int(box.attempt) or (went_on and not box.is_requested))
        return ServedBox(
            int(box.attempt), box.rank, box.time, box.reason, len(box.text), asked=box.is_requested, past=past
        )

    def _may_read(self, request: web.Request, run: str) -> bool:
        return self._reader_of(request).may_read(self._table.owner_of(run))

    def _rank(self, rank: Rank) -> ServedRank:
        return ServedRank(
            rank.hello.rank,
            self._table.state_of(rank),
            rank.step,
            "" if rank.outcome else rank.phase or "",
            rank.phase_seconds(self._clock.monotonic()),
            rank.place[0],
            dict(rank.coordinates),
            rank.where,
        )

    async def _index(self, request: web.Request) -> web.Response:
        found = self.index(request.match_info["run"])
        if found is None:
            return _not_here(request)
        return _answer(found.as_json())

    async def _box(self, request: web.Request) -> web.Response:
        attempt, rank = int(request.match_info["attempt"]), int(request.match_info["rank"])
        of_rank = [
            box
            for box in self._table.boxes.of(request.match_info["run"])
            if (int(box.attempt), box.rank) == (attempt, rank)
        ]
        for box in of_rank:  # what was left comes first, and stands for a request where there is none
            if box.is_requested or not request.match_info["asked"]:
                may_read = self._reader_of(request).may_read(box.uid)
                return _answer(box.text if may_read else public_box(box.text))
        return _not_here(request)

    async def _ras_answer(self, request: web.Request) -> web.Response:
        run = request.match_info["run"]
        ras = self._ras_of(run)
        if ras is None or ras.answer is None:
            return _not_here(request)
        if not self._may_read(request, run):
            return _refused()
        kind = "application/json" if ras.answer.kind == "json" else "text/plain"
        return _answer(ras.answer.text, kind)

    async def _capture(self, request: web.Request) -> web.Response:
        run = request.match_info["run"]
        if not _is_own(request):
            return web.Response(status=403, text="refused: this request comes from a page of another site\n")
        if self.index(run) is None:
            return _not_here(request)
        if not self._may_read(request, run):
            return _refused()
        captured = self._captured.get(run)
        now = self._clock.monotonic()
        if captured is None or now - captured.at >= CAPTURED_TOGETHER_SECONDS:
            captured = self._captured[run] = _Captured(now, self._clock.wall())
            if len(self._captured) > MOST_CAPTURES:
                del self._captured[next(iter(self._captured))]
        asked = self._table.capture(run, BOX_ASKED_FOR)
        if request.query.get("ras") == "1":
            self._ask_ras(run)
        if "text/html" in request.headers.get("Accept", ""):
            raise web.HTTPSeeOther(served.page_path(run))
        said = {"run": run, "node": self._node, "asked": asked, "time": captured.wall}
        return _answer(json.dumps(said).encode())

    def _ras_of(self, run: str) -> _Ras | None:
        """Return what is known for a run; nothing of another user's run that had the name before."""
        ras = self._ras.get(run)
        return ras if ras is not None and ras.owner == self._table.owner_of(run) else None

    def _ask_ras(self, run: str) -> None:
        """Ask NCCL's service in the background, unless it is being asked already."""
        if self._asking:
            return
        self._ras.pop(run, None)
        state = self._ras[run] = _Ras(self._table.owner_of(run), "being asked")
        while len(self._ras) > RAS_KEPT:
            del self._ras[next(iter(self._ras))]
        if self._ras_address is None:
            state.said = "not asked: blackbox.ras is empty"
            return
        task = asyncio.create_task(_fill(state, *self._ras_address))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _page(self, request: web.Request) -> web.Response:
        run, reader = request.match_info["run"], self._reader_of(request)
        index, owner = self.index(run), self._table.owner_of(run)
        may_read = reader.may_read(owner)
        analysis: Analysis | None = None
        trouble, status, again = "", 200, False
        if index is None:
            status = 404
        elif index.boxes or self._peers:
            try:
                analysis = await self._analyses.of(
                    run, lambda: self._request(run, reader), PATIENCE_SECONDS,
                    Asker(reader.share, owner, reader.reads_all),
                    seen=(may_read, reader.reads_all), content=self._content(index),
                    is_incident=any(box.is_evidence for box in index.boxes),
                )  # fmt: skip
                again = analysis is None
            except BusyError as error:
                if reader.uid is not None:
                    self._table.shares.exceeded(reader.uid, "analyses")
                trouble, status, again = str(error), 503, True
            except AnalysisError as error:
                trouble = str(error)
        from tachograph.node.evidence.page import run_page  # late: the exporter carries no page that nobody looks at

        html = run_page(
            run, self._node, self._clock.wall(), index,
            analysis=analysis, trouble=trouble, again=again, peers=self._peers, may_read=may_read,
        )  # fmt: skip
        return web.Response(text=html, status=status, content_type="text/html", charset="utf-8", headers=CLOSED)

    def _content(self, index: ServedRun) -> Hashable:
        """Return what the verdict on a run rests on, None with the boxes of other nodes, which may be others by now."""
        if self._peers:
            return None
        return index.boxes, tuple((rank.rank, rank.state, rank.where) for rank in index.ranks)

    def _request(self, run: str, reader: Reader) -> tuple[Request, Sequence[bytes]]:
        index = self.index(run) or ServedRun(run, self._node, self._clock.wall(), 0, (), ())
        boxes = tuple(box for _, box in served.current({"": index}))
        texts = {(int(box.attempt), box.rank, box.is_requested): box.text for box in self._table.boxes.of(run)}
        own = replace(index, boxes=boxes)
        may_read = reader.may_read(self._table.owner_of(run))
        # By its name another node's run may be another user's.
        asked = Request(own, self._peers, is_private=may_read, all_private=reader.reads_all)
        return asked, [texts[box.attempt, box.rank, box.asked] for box in boxes]


async def _fill(state: _Ras, host: str, port: int) -> None:
    try:
        answer = await nccl_ras.ask(host, port, state.owner)
    except RasError as error:
        state.said = f"{host}:{port}: {error}"
    else:
        cut = "" if answer.whole else ", cut off there"
        state.answer, state.said = answer, f"{host}:{port} answered {plural(len(answer.text), 'byte')}{cut}"


def _is_own(request: web.Request) -> bool:
    """Return whether no other site made a browser send this: it would send the user's password along."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return False
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("Host", "")


def _answer(body: bytes, kind: str = "application/json") -> web.Response:
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=CLOSED)


def _not_here(request: web.Request) -> web.Response:
    what = "no such box here" if "rank" in request.match_info else "no such run here, or nothing of it"
    return web.Response(status=404, text=f"{what}\n", headers=CLOSED)


def _refused() -> web.Response:
    text = "refused: only for the run's owner and the site's readers, over the unix socket or with a password\n"
    return web.Response(status=403, text=text, headers=CLOSED)
