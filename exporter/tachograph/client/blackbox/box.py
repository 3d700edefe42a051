"""The box of a rank as one JSON object, never longer than a box may be: what is too much is cut, and that is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tachograph.client.blackbox import log_lines
from tachograph.client.blackbox.environment import environment_summary
from tachograph.client.blackbox.memory import host_memory_summary
from tachograph.client.blackbox.recorded import recorded
from tachograph.client.blackbox.stacks import stacks
from tachograph.text.redact import redact, redact_lines
from tachograph.wire import MAX_BOX_BYTES, jsonable

PART_BYTES = 96 * 1024
"""Of the stacks, and of the groups: the entries of Flight Recorders have what is left."""

LINE_CHARACTERS = 300
"""Of a line of the log."""

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=lambda value: type(value).__name__).encode


def make_box(facts: Mapping[str, object], training: int | None, *, with_lines: bool) -> bytes:
    """Return a box as ASCII: the facts, and what is read here: stacks, memory, environment, log, Flight Recorders.

    Without `training`, the thread that trains, there are no stacks; `with_lines` has the recorders say from where each
    collective was called. A part that cannot be read is left out, and named under `unreadable`.
    """
    box, unreadable = dict(facts), list[str]()

    def part(name: str, read: Callable[[], object]) -> Any:  # noqa: ANN401 - each has its own type
        try:
            return jsonable(read())
        except Exception as error:  # noqa: BLE001 - PyTorch's private names, a process that is about to end
            unreadable.append(f"{name}: {type(error).__name__}")
            return None

    failure = box.get("failure")
    if isinstance(failure, dict):
        lines = [redact(str(line)) for line in failure.get("lines", ())]
        box["failure"] = {**failure, "message": redact(str(failure.get("message"))), "lines": lines}
    if training is not None:
        box["stacks"] = _cut_list(part("stacks", lambda: stacks(training)) or [], PART_BYTES)
    box["groups"] = _cut_groups(box.get("groups"))
    memory = box.get("memory")
    box["memory"] = {**(memory if isinstance(memory, dict) else {}), **(part("memory", host_memory_summary) or {})}
    box["environment"] = part("environment", environment_summary)
    box["log"] = part("log", lambda: [line[:LINE_CHARACTERS] for line in redact_lines(tuple(log_lines.kept))])
    dumps = part("recorders", lambda: recorded(lines=with_lines)) or {}
    if unreadable:
        box["unreadable"] = unreadable
    return _with_recorders(jsonable(box), dumps)


def _with_recorders(box: object, dumps: dict[str, dict[str, Any]]) -> bytes:
    """Return the box with as many entries of each recorder as fit, the newest ones."""
    found = {name: [_encode(entry) for entry in dump.pop("entries", ())] for name, dump in dumps.items()}
    head, heads = _encode(box)[:-1] + ',"recorders":{', {name: _encode(dump)[:-1] for name, dump in dumps.items()}
    left = MAX_BOX_BYTES - len(head) - sum(len(name) + len(each) + 64 for name, each in heads.items()) - 2
    texts = []
    for number, (name, entries) in enumerate(sorted(found.items(), key=lambda item: sum(map(len, item[1])))):
        fits, share = len(entries), left // (len(found) - number)
        while fits and sum(map(len, entries[-fits:])) + fits > share:
            fits = fits * 3 // 4
        kept = entries[len(entries) - fits :]
        left -= sum(map(len, kept)) + fits
        more = f',"entries_cut":{len(entries) - fits}' if fits < len(entries) else ""
        start = heads[name] + ("," if len(heads[name]) > 1 else "")
        texts.append(f'{_encode(name)}:{start}"entries":[{",".join(kept)}]{more}}}')
    return (head + ",".join(texts) + "}}").encode("ascii")


def _cut_list(values: list[Any], size: int) -> list[Any]:
    """Return the first ones, as many as fit, and how many more there were."""
    kept: list[Any] = []
    for value in values:
        size -= len(_encode(value)) + 1
        if size < 0:
            return [*kept, {"cut": len(values) - len(kept)}]
        kept.append(value)
    return kept


def _cut_groups(groups: object) -> dict[str, Any]:
    """Return the groups without the members of the largest, if they are too many; then without the last groups."""
    found: dict[str, Any] = {str(name): dict(each) for name, each in groups.items()} if isinstance(groups, dict) else {}
    size = sum(len(_encode(name)) + len(_encode(each)) + 2 for name, each in found.items())
    for each in sorted(found.values(), key=lambda each: -len(each.get("ranks", ()))):
        if size <= PART_BYTES:
            return found
        size -= len(_encode(each))
        each["members"] = len(each.pop("ranks", ()))
        size += len(_encode(each))
    while size > PART_BYTES:
        name, each = found.popitem()
        size -= len(_encode(name)) + len(_encode(each)) + 2
    return found
