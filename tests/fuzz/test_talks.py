"""Invalid frames and hellos of several users: nothing raises, and no other user is affected."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tachograph.catalog.rank import FAILURE_REASONS, OPERATIONS, PHASES, RANK_JOB_INFO, TIERS
from tachograph.catalog.train import TRAIN_CONFIG_INFO, TRAIN_METRICS

CORPUS = Path(__file__).parent / "corpus"
SLOTS = 6
"""Connections that talk at the same time: the odd ones are one user's, the even ones another's."""

WITNESS_UID = 7
Step = tuple[Any, ...]
"""`("line", slot, bytes as Latin-1)`, `("close", slot)`, or `("wait", seconds)`."""


def line(**fields: object) -> bytes:
    return json.dumps({"v": 1, **fields}).encode() + b"\n"


def hello(rank: int, run: str = "witness") -> bytes:
    return line(type="hello", run=run, rank=rank, pid=rank + 1)


def check(talk: list[Step], unheard: Any, node: Any) -> None:
    """A talk raises nothing, changes nothing for another user, and leaves nothing behind."""
    unheard.found.clear()
    try:
        node.run_until_complete(play(node, talk))
    finally:
        node.close()
    assert not unheard.found


async def play(node: Any, talk: list[Step]) -> None:
    mine = [node.speaker(WITNESS_UID, rank + 1) for rank in range(3)]
    assert [answer["ok"] for rank in (0, 1) for answer in await mine[rank].say(hello(rank))] == [True, True]
    mine[1].close()
    await mine[0].say(line(type="state", seq=1, time=1.0, step=5, metrics={"tokens_total": 7}))
    speakers: dict[int, Any] = {}
    for action, *rest in talk:
        if action == "wait":
            await node.wait(rest[0])
            continue
        slot = int(rest[0])
        speaker = speakers.setdefault(slot, node.speaker(1000 + slot % 2, 100 + slot))
        if action == "line":
            await speaker.say(rest[1].encode("latin-1") + b"\n")
        else:
            speaker.close()
    assert node.now < 1000 + node.retention, "the talk took so long that the dead may be forgotten"
    assert await mine[0].say(line(type="state", seq=2, time=2.0, step=6, metrics={"tokens_total": 8})) == []
    assert [answer["ok"] for answer in await mine[2].say(hello(2))] == [True], "another user's new rank is refused"
    await node.wait(5.0)  # sums are shown once ranks had the time to come back
    page = node.page()
    assert ("tachograph_train_tokens_total", "witness", "0", "8") in page
    assert ("tachograph_rank_state", "witness", "1", "dead", "1") in page, "another user's dead rank is forgotten"
    for speaker in speakers.values():
        speaker.close()
    await node.wait(node.retention + 1)
    runs = {labels[1] for labels in node.page() if labels[0] == "tachograph_rank_info"}
    assert runs == {"witness"}, "a run outlives its ranks"


def steps_of(text: str) -> list[Step]:
    """Return the steps of a corpus file: ["repeat", n, steps] is n times those, {i} counts, {wide} is 6,300 labels."""
    steps: list[Step] = []
    for action, *rest in json.loads(text):
        if action == "repeat":
            for i in range(rest[0]):
                for kind, *each in rest[1]:
                    steps.append((kind, *[one.replace("{i}", str(i)) if isinstance(one, str) else one for one in each]))
        else:
            steps.append((action, *[one.replace("{wide}", WIDE) if isinstance(one, str) else one for one in rest]))
    return steps


WIDE = ",".join(f'"{i:x}":1' for i in range(6300))
LONG = 10**400
edges = st.sampled_from(
    [LONG, -LONG, 10**309, 2**53, 2**53 + 1, 2**63, 2**64, 2**36, 10**15, -1, 0, -0.0, 1e308, -1e308, 5e-324]
)
numbers = edges | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
odd_texts = st.sampled_from([
    "", "訓" * 100, "𝕏" * 128, "𝕏" * 64, "x" * 64, "x" * 65, "x" * 129, "\x1b[31m", "\n", '"', "\\", "\u2028", "\x00",
    "\x7f", "\u202e", "NaN", "+Inf", "-Inf", "nan", "<!channel>", "GPU-" + "a" * 124,
])  # fmt: skip
texts = odd_texts | st.text(max_size=12)
names = st.sampled_from([
    *TRAIN_METRICS, *PHASES, *OPERATIONS, *FAILURE_REASONS, *TRAIN_CONFIG_INFO.labels, *RANK_JOB_INFO.labels, *TIERS,
    "peak_flops", "schema", "sum", "count", "buckets",
])  # fmt: skip


class Raw(str):
    """Text that stands in JSON as it is."""


class Pairs(list[tuple[str, object]]):
    """An object whose keys may stand twice."""


leaves = numbers | texts | names | st.none() | st.booleans()
deep = st.builds(lambda depth: Raw("[" * depth + "]" * depth), st.sampled_from([2, 100, 400, 900]))
values = (
    leaves
    | st.lists(leaves, max_size=4)
    | st.lists(st.tuples(texts | names, leaves | deep), max_size=4).map(Pairs)
    | deep
)
breaking = (
    st.sampled_from(
        ["1e999", "-1e-999", "1" * 5000, "0." + "1" * 5000, "01", "NaN", '"\\ud800"', '"\\udfff\\ud800"', '"\x00"']
    )
    | st.builds(lambda depth: '{"a":' * depth + "1" + "}" * depth, st.sampled_from([900, 1100, 9000]))
).map(Raw)
"""Values that are invalid in any frame."""

amounts = st.floats(0, 1e9) | st.integers(0, 2**53) | edges
labelled = st.lists(st.tuples(names | texts | st.integers(0, 40).map(str), amounts | values), max_size=8).map(
    Pairs
) | st.builds(lambda count: Pairs((f"l{i}", i) for i in range(count)), st.sampled_from([33, 300, 5000]))
labelled_keys = st.sampled_from([key for key, row in TRAIN_METRICS.items() if row.own_label is not None])
plain_keys = st.sampled_from([key for key, row in TRAIN_METRICS.items() if row.own_label is None])
metrics = st.lists(
    st.tuples(labelled_keys, labelled)
    | st.tuples(plain_keys, amounts)
    | st.tuples(labelled_keys | plain_keys | names | texts, amounts | labelled | values),
    max_size=8,
).map(Pairs)
buckets = st.lists(st.tuples(st.integers(-250, 250).map(str) | texts, st.integers(-1, 2**54) | values), max_size=8)
histograms = st.lists(
    st.tuples(
        st.sampled_from(["step_seconds", "lunch_seconds"]),
        st.tuples(st.sampled_from([3, 2, "3", -1]), numbers, numbers, buckets.map(Pairs)).map(
            lambda made: Pairs(zip(("schema", "sum", "count", "buckets"), made, strict=True))
        )
        | values,
    ),
    max_size=3,
).map(Pairs)
counts = st.integers(0, 3) | numbers
times = st.floats(0, 2e9) | numbers
events = (
    st.lists(
        st.tuples(counts, names | texts, times).map(lambda made: Pairs(zip(("id", "kind", "time"), made, strict=True))),
        max_size=4,
    )
    | st.just(Pairs([]))
    | st.just([Pairs([("id", i), ("kind", "k"), ("time", 1.0)]) for i in range(65)])
)
few = st.integers(0, 3)
odd = edges | odd_texts | values
facts = st.lists(st.tuples(st.sampled_from(TRAIN_CONFIG_INFO.labels[2:]) | names, odd), max_size=4).map(Pairs)
jobs = st.lists(st.tuples(st.sampled_from(RANK_JOB_INFO.labels[2:]) | names, odd), max_size=4).map(Pairs)
RIGHT: Mapping[str, Mapping[str, st.SearchStrategy[object]]] = {
    "hello": {
        "run": st.sampled_from(["r", "q", "訓" * 100, "witness"]) | st.text(min_size=1, max_size=128), "rank": few,
        "pid": few, "attempt": few, "local_rank": few, "world_size": few, "uuid": texts | st.none(), "facts": facts,
        "visible_devices": values, "granted_devices": values, "job": jobs,
    },
    "state": {
        "seq": few, "time": st.floats(0, 2e9), "step": few, "phase": names, "phase_since": st.floats(0, 2e9),
        "progress_time": st.floats(0, 2e9), "metrics": metrics, "histograms": histograms, "dropped": few,
    },
    "bye": {"outcome": st.sampled_from(["finished", "failed"]), "category": names | texts, "message": texts},
}  # fmt: skip
"""Fields that cost a frame at most a part of it."""

WRONG: Mapping[str, st.SearchStrategy[object]] = {"seq": counts, "time": times, "events": events}
NEEDED = {"hello": ("run", "rank"), "state": ("seq", "time"), "bye": ("outcome",)}


def written(value: object) -> str:
    """Return a value as JSON: raw text and double keys included, and numbers of any length."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{written(each)}" for key, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


@st.composite
def frames(draw: st.DrawFn) -> str:
    """Make a frame that is right but for a field or two, or one that was mutilated on its way."""
    kind = draw(st.sampled_from(["hello", "hello", "state", "state", "state", "bye"]))
    needed = {name: RIGHT[kind][name] for name in NEEDED[kind]}
    optional = {name: made for name, made in RIGHT[kind].items() if name not in needed}
    given: list[tuple[str, object]] = [*draw(st.fixed_dictionaries(needed, optional=optional)).items()]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):  # a key that stands twice counts as it does last
        name = draw(st.sampled_from([*RIGHT[kind], "v", "type", "events"]))
        given.append((name, draw(WRONG.get(name, values) | values | breaking)))
    text = written(Pairs([("v", 1), ("type", kind), *given]))
    if draw(st.integers(0, 7)):
        return text
    cut, other = draw(st.integers(0, len(text))), draw(st.binary(max_size=6)).decode("latin-1")
    head, tail = text[:cut], text[cut:]
    return draw(st.sampled_from([head, tail, head + other + tail, text + text, head + text]))


slots = st.integers(0, SLOTS - 1)
data = st.integers(0, 9).flatmap(lambda one: frames().map(str.encode) if one else st.binary(max_size=40))
lines = st.tuples(st.just("line"), slots, data.map(lambda data: data.decode("latin-1")))
GREETINGS = [("line", slot, hello(slot // 2, "rq"[slot % 2])[:-1].decode()) for slot in range(SLOTS)]
doings = st.lists(
    lines | lines | lines
    | st.tuples(st.just("close"), slots) | st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 15.0])),
    min_size=4, max_size=30,
)  # fmt: skip
talks = doings.map(lambda after: [*GREETINGS, *after])


@pytest.mark.parametrize("path", sorted(CORPUS.glob("talk-*.json")), ids=lambda path: path.stem)
def test_a_talk_that_once_did_harm(path: Path, unheard: Any, new_node: Callable[[], Any]) -> None:
    """Inputs that once failed."""
    check(steps_of(path.read_text(encoding="utf-8")), unheard, new_node())


def test_no_talk_harms_another_user(fuzz: Callable[..., None], unheard: Any, new_node: Callable[[], Any]) -> None:
    """Whatever several users say at once: no exception, and everybody else's ranks are as they would be without it."""
    fuzz(lambda talk: check(talk, unheard, new_node()), talks, examples=75, share=0.3)
