"""Analyses: one at a time in a process of its own, bounded, and shared by all who ask."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tachograph.blackbox import served
from tachograph.blackbox.findings import Verdict
from tachograph.blackbox.served import ServedBox, ServedRun
from tachograph.node.clock import Clock
from tachograph.node.evidence import analyses
from tachograph.node.evidence.analyses import (
    MOST_OF_ASKER,
    MOST_WAITING,
    Analyses,
    Analysis,
    AnalysisError,
    Asker,
    BusyError,
)
from tachograph.node.evidence.request import Request
from tachograph.node.evidence.routes import Evidence
from tachograph.node.ranks.frames import BoxPart, Hello
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.web.readers import Reader

SKIPPED = 5


def box(rank: int, calls: int) -> bytes:
    """Return the box of a rank that has called so many collectives, the last of them not done."""
    entries = [
        {
            "process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_790_000_000_000_000_000 + number, "state": "completed" if number < 4 else "started",
            "retired": number < 4, "input_sizes": [[4]], "output_sizes": [[4]], "pg_id": 0,
        }
        for number in range(1, calls + 1)
    ]  # fmt: skip
    groups = {"0": {"ranks": [0, 1, 2, 3]}}
    where = "data.py:88 load_shard" if calls < 4 else "train.py:140 backward"
    whole = {"rank": rank, "world_size": 4, "attempt": 0, "groups": groups, "where": where,
             "recorders": {"nccl": {"version": "2.9", "entries": entries}}}  # fmt: skip
    return json.dumps(whole).encode()


def request(texts: Sequence[bytes], run: str = "llama-7b") -> Callable[[], tuple[Request, Sequence[bytes]]]:
    boxes = tuple(ServedBox(0, rank, 100.0, "no step", len(text)) for rank, text in enumerate(texts))
    return lambda: (Request(ServedRun(run, "node-27", 100.0, 4, boxes, ())), texts)


STUCK = [box(0, 4), box(1, 3), box(2, 4), box(3, 4)]


def run(use: Callable[[Analyses], Awaitable[Any]], *program: str, **settings: Any) -> Any:
    async def whole() -> Any:
        loop = asyncio.get_running_loop()
        command = [sys.executable, "-c", *program] if program else None
        made = Analyses(loop.time, lambda: 200.0, command, **settings)
        try:
            return await use(made)
        finally:
            await made.close()

    return asyncio.run(whole())


def test_the_verdict() -> None:
    """The rank that never called the collective is named, with the line at which it stands."""
    found = run(lambda made: made.of("llama-7b", request(STUCK), 30.0))
    (culprit,) = found.verdict.culprits
    assert (culprit.rank, culprit.line) == (1, "data.py:88 load_shard")
    assert found.where[0] == "train.py:140 backward"
    assert (found.boxes[1].reason, found.trouble, found.time) == ("no step", "", 200.0)


@pytest.mark.parametrize(
    "hostile",
    [
        b"[" * 400_000,
        b'{"entries": ' + b"[" * 400_000,
        b'{"recorders": {"nccl": {"entries": [' + b"{}," * 170_000 + b"{}]}}}",
        b'{"rank": 99999999999999999999, "world_size": -1, "groups": [1], "where": {"a": 1}}',
        b'{"groups": {"' + b"x" * 400_000 + b'": {"ranks": [0, 1, 2, 3]}}}',
        b"\x80\x02cos\nsystem\n(S'touch /tmp/x'\ntR.",
        b"null",
        b"",
    ],
    ids=range(8),
)
def test_a_hostile_box(hostile: bytes) -> None:
    """Whatever a rank sends as its box, the others' say what they say."""
    found = run(lambda made: made.of("llama-7b", request([*STUCK[:3], hostile]), 30.0))
    assert 1 in [one.rank for one in found.verdict.culprits]


def test_one_that_does_not_end_is_ended() -> None:
    """A process that hangs is killed, and the reason is in words."""
    with pytest.raises(AnalysisError, match=r"longer than 0\.2 s"):
        run(lambda made: made.of("r", request([]), 30.0), "import time; time.sleep(60)", longest=0.2)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was ended"),
        ("raise MemoryError", "it failed"),
        ("print('[')", "unreadable"),
        ("import sys; sys.stdout.write('x' * (1 << 26))", "too large"),
    ],
)
def test_one_that_fails(program: str, said: str) -> None:
    """A process that fails costs its own result, with a reason."""
    with pytest.raises(AnalysisError, match=said):
        run(lambda made: made.of("r", request([]), 30.0), program)


def test_it_is_shared_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who ask share one process, and who asks a moment later gets the same; after that it is made anew."""
    asked = 0

    def counted() -> tuple[Request, Sequence[bytes]]:
        nonlocal asked
        asked += 1
        return request(STUCK)()

    async def use(made: Analyses) -> None:
        first, second = await asyncio.gather(*(made.of("llama-7b", counted, 30.0) for _ in range(2)))
        assert first is second
        assert await made.of("llama-7b", counted, 30.0) is first
        assert asked == 1
        monkeypatch.setattr(analyses, "KEPT_SECONDS", -1.0)
        assert await made.of("llama-7b", counted, 30.0) is not first
        assert asked == 2

    run(use)


def test_who_cannot_wait_is_told_so() -> None:
    """After the patience of the asker there is no result yet; the work goes on."""

    async def use(made: Analyses) -> None:
        assert await made.of("llama-7b", request(STUCK), 0.0) is None
        assert (await made.of("llama-7b", request(STUCK), 30.0)).verdict.culprits

    run(use)


def test_a_storm_of_one_asker_is_refused() -> None:
    """One asker has so many that wait; who else asks has a place all the same, of the one that has most of them."""

    async def use(made: Analyses) -> None:
        await made.of("under way", request([]), 0.0, Asker("first"))
        await asyncio.sleep(0)
        for number in range(MOST_OF_ASKER):
            await made.of(f"run-{number}", request([]), 0.0, Asker("bob", 1002))
        with pytest.raises(BusyError):
            await made.of("one-more", request([]), 0.0, Asker("bob", 1002))
        for number in range(MOST_WAITING - MOST_OF_ASKER):
            await made.of(f"of-{number}", request([]), 0.0, Asker(f"asker-{number}"))
        assert len(made._waiting) == MOST_WAITING
        await made.of("alice's", request([]), 0.0, Asker("alice", 1001))
        assert [each.asker.share for each in made._waiting].count("bob") == MOST_OF_ASKER - 1
        with pytest.raises(BusyError):
            await made.of("bob's fifth", request([]), 0.0, Asker("bob", 1002))

    run(use, "import time; time.sleep(60)")


NOTHING = {
    "verdict": asdict(Verdict("nowhere")), "where": {}, "boxes": {}, "ranks": {}, "exporters": 0, "silent": {},
    "failed": {},
}  # fmt: skip
QUICK = (
    "import json, sys, time; line = sys.stdin.buffer.readline(); time.sleep(float(sys.argv[1])); "
    "print(json.dumps({**json.loads(sys.argv[2]), 'trouble': json.loads(line)['own']['run']}))"
)
"""An analyst that takes as long as it is told, and says which run it was asked about."""


def order_of(asked: Sequence[tuple[str, Asker, bool]], seconds: str = "0.05") -> list[str]:
    """Return the runs in the order in which their analyses end: all are asked for while another one is under way."""
    ended: list[str] = []

    async def one(made: Analyses, name: str, asker: Asker, is_incident: bool) -> None:
        found = await made.of(name, request([], name), 30.0, asker, is_incident=is_incident)
        assert found is not None
        ended.append(found.trouble)

    async def use(made: Analyses) -> None:
        first = asyncio.create_task(one(made, "first", Asker("first"), False))
        await asyncio.sleep(0)
        await asyncio.gather(first, *(one(made, *each) for each in asked))

    run(use, QUICK, seconds, json.dumps(NOTHING))
    assert ended.pop(0) == "first"
    return ended


BOB, ALICE, ONCALL = Asker("uid 1002", 1002), Asker("uid 1001", 1001), Asker("uid 0", 1001, is_site=True)


def test_who_asks_much_waits_for_the_others() -> None:
    """After each analysis its asker rests, so that whoever asks later about one run is not behind all of them."""
    asked = [*((f"bob-{number}", BOB, False) for number in range(4)), ("alice", ALICE, False)]
    assert order_of(asked).index("alice") <= 1


def test_the_runs_of_one_owner_take_nothing_from_another_s() -> None:
    """Two who ask from one address, where nothing says who they are, are told apart by whose run it is."""
    here = "127.0.0.1"
    asked = [*((f"bob-{number}", Asker(here, 1002), False) for number in range(4)), ("alice", Asker(here, 1001), False)]
    assert order_of(asked).index("alice") <= 1


def test_an_incident_comes_first() -> None:
    """Before those who asked earlier about runs that are well, and the site's readers before anybody."""
    asked = [
        ("well", Asker("a"), False), ("also well", Asker("b"), False), ("hung", ALICE, True), ("page", ONCALL, False),
    ]  # fmt: skip
    assert order_of(asked) == ["page", "hung", "well", "also well"]


def test_who_asks_for_the_same_is_not_behind_the_first() -> None:
    """An analysis that somebody waits for who rests begins as soon as it would for whoever asks for it as well."""
    asked = [*((f"bob-{number}", BOB, False) for number in range(3)), ("same", BOB, False), ("same", ONCALL, True)]
    assert order_of(asked)[:2] == ["same", "same"]


def test_reloads_cost_nothing_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same boxes have the same verdict for a minute, others a new one; another reader may see another."""
    monkeypatch.setattr(analyses, "KEPT_SECONDS", -1.0)

    async def use(made: Analyses) -> None:
        first = await made.of("r", request([]), 30.0, content="boxes")
        assert await made.of("r", request([]), 30.0, BOB, content="boxes") is first
        others = [
            await made.of("r", request([]), 30.0, Asker(f"{number}"), seen=seen, content=content)
            for number, (seen, content) in enumerate(((True, "boxes"), (None, "more boxes"), (None, None)))
        ]
        assert len({id(one) for one in (first, *others)}) == 4
        monkeypatch.setattr(analyses, "SAME_SECONDS", -1.0)
        assert await made.of("r", request([]), 30.0, Asker("later"), content=None) is not others[2]

    run(use, QUICK, "0", json.dumps(NOTHING))


def test_all_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the askers have taken what they may at once, only the site's readers have an analysis without a rest."""
    monkeypatch.setattr(analyses, "BURST_SECONDS", 0.05)
    asked = [(f"{number}", Asker(f"{number}"), False) for number in range(3)]

    async def use(made: Analyses) -> None:
        for name, asker, _ in asked[:2]:
            assert await made.of(name, request([], name), 30.0, asker) is not None
        assert await made.of("2", request([], "2"), 0.0, asked[2][1]) is None
        now = asyncio.get_running_loop().time()
        assert made._spent.free_at(now) > now
        assert await made.of("page", request([], "page"), 30.0, ONCALL) is not None
        assert not made._kept["2", None].result.done()

    run(use, QUICK, "0.3", json.dumps(NOTHING))


@pytest.mark.parametrize(("reader", "over"), [(Reader("uid 7", 7), {("7", "analyses"): 1}), (Reader("10.0.0.7"), {})])
def test_who_wants_more_than_a_share_of_analyses_is_counted(two_gpus: Any, reader: Reader, over: object) -> None:
    """By the uid that the kernel says; the page says that it is not the turn of this reader, and asks again."""

    class Full(Analyses):
        async def of(self, *_: Any, **__: Any) -> Analysis | None:
            raise BusyError("too many")

    table = RankTable(Limits(), Clock(), two_gpus)
    evidence = Evidence(table, Clock(), "n", analyses=Full(Clock().monotonic, Clock().wall))
    app = web.Application()
    app.add_routes(evidence.routes(lambda _: reader))
    table.boxes.add(1000, Hello(v=1, run="r", rank=0), BoxPart(1, 1, 0, 1, 100.0, "no step", "{}"))

    async def main() -> int:
        asked = make_mocked_request("GET", served.page_path("r"))
        found = await app.router.resolve(asked)
        asked._match_info = found
        page = await found.handler(asked)
        assert isinstance(page, web.Response)
        return page.status

    assert asyncio.run(main()) == 503
    assert table.shares.over == over


def test_what_nccl_said_does_not_pass_to_another_user_with_the_name(two_gpus: Any) -> None:
    """As the boxes do not."""
    table = RankTable(Limits(), Clock(), two_gpus)
    evidence = Evidence(table, Clock(), "n")
    for owner, said in ((1000, "not asked: blackbox.ras is empty"), (1001, "")):
        table.boxes.drop_of_others("r", owner)
        table.boxes.add(owner, Hello(v=1, run="r", rank=0), BoxPart(1, 1, 0, 1, 100.0, "no step", "{}"))
        if owner == 1000:
            evidence._ask_ras("r")
        index = evidence.index("r")
        assert index is not None
        assert index.ras_said == said
