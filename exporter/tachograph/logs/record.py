"""One record of a log: a plain line, or an object of JSON with its texts, time and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tachograph.logs.line import PLAIN, LineShape, LogLine, parse, plain, time_of

_DEPTH = 5
_PAIRS = 40
"""Attributes of a record that are read."""
_LONGEST = 64 << 10
_TEXTS = ("message", "msg", "log", "line", "textpayload", "text", "event", "body", "content", "error")
"""Fields that hold the message, the likeliest first."""
_TRACES = ("exc", "traceback", "stack", "exception", "error")
"""Parts of the names of fields that hold a traceback or an exception."""
_TIMES = ("realtimetimestamp", "timestamp", "time", "ts", "asctime", "datetime", "date", "eventtime")
_RANKS = ("rank", "globalrank", "processrank", "rankid", "procid", "slurmprocid")
_LOCALS = ("localrank",)
_NODES = ("nodename", "node", "hostname", "host", "podname", "pod", "instance", "ip")
_PIDS = ("pid", "processid")
_HEAD = "Traceback (most recent call last)"
_FIELD = re.compile(r'"[\w@.]{1,40}": ".*",?$')
_CUT = re.compile(r"\bstd(?:out|err) P ")
_CLASS = re.compile(r"(?:\w+\.)*\w+(?:Error|Exception|Exit|Interrupt|Failure|Timeout)")
_OF_DOCKER = {"log", "stream", "time", "attrs"}
_LEVEL = ("level", "severity", "levelname")


class LogRecord(NamedTuple):
    """The lines of a record, the message first.

    `raws`: each with its prefix. `json`: they are not what stands in the file. `partial`: it goes on in the next one.
    """

    lines: tuple[LogLine, ...]
    raws: tuple[str, ...]
    json: bool = False
    partial: bool = False


def read(raw: str, until: float, shape: LineShape = PLAIN) -> LogRecord:
    """Return the record that a line is; `until` and `shape` as for `parse`."""
    line = parse(raw, until, shape)
    text = line.text.strip()
    if text.startswith('"') and _FIELD.match(text):  # of an object that is printed over several lines
        text = f"{{{text.rstrip(',')}}}"
    if text.startswith("{") and (found := _from_json(line._replace(text=text), until)):
        return found
    return LogRecord((line,), (plain(raw),), partial=bool(_CUT.search(raw, 0, 80)))


def _from_json(outer: LogLine, until: float) -> LogRecord | None:
    """Return the record in an object; None if it is none."""
    try:
        given = json.loads(outer.text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    fields: dict[str, object] = {}
    for name, value in _flat(given, _DEPTH):
        fields.setdefault(name, value)
    texts = [str(fields[name]) for name in _TEXTS if isinstance(fields.get(name), str)]
    texts = (
        texts[:1]
        or sorted((value for value in fields.values() if isinstance(value, str) and " " in value), key=len)[-1:]
    )
    texts += [
        value
        for name, value in fields.items()
        if isinstance(value, str)
        and value not in texts
        and (_HEAD in value or (any(part in name for part in _TRACES) and " " in value))
    ]
    texts += [text for text in _raised(fields) if text not in texts]
    if not texts:
        return None
    facts = LogLine(
        "",
        next((at for name in _TIMES if (at := _time(fields.get(name), until)) is not None), outer.time),
        _number(fields, _RANKS, outer.rank),
        _number(fields, _LOCALS, outer.local_rank),
        next((str(fields[name]) for name in _NODES if isinstance(fields.get(name), str)), outer.node),
        _number(fields, _PIDS, outer.pid),
    )
    lines: list[LogLine] = []
    raws: list[str] = []
    for text in texts:
        if text.startswith("{") and (inner := _from_json(facts._replace(text=text.strip()[:_LONGEST]), until)):
            lines += inner.lines
            raws += inner.raws
            continue
        parts = text[:_LONGEST].rstrip("\n").split("\n")
        first = _with(parse(parts[0], until), facts)
        lines += [first, *(_with(parse(part, until), first) for part in parts[1:])]
        raws += [f"{facts.node}\t{facts.rank}\t{plain(part)}" for part in parts]
    level = next((str(fields[name]) for name in _LEVEL if name in fields), "")
    if level.upper().startswith("WARN"):
        lines = [one._replace(text=f"WARNING {one.text}") for one in lines]
    return LogRecord(tuple(lines), tuple(raws), json=True, partial=_is_cut(given))


def _is_cut(given: Mapping[str, object]) -> bool:
    """Return whether a container's line goes on in the next record: Docker's lacks its end, of others a tag says it.

    What collects logs takes the ends of all lines away.
    """
    if "logtag" in given:
        return given["logtag"] == "P"
    log = given.get("log")
    return "stream" in given and given.keys() <= _OF_DOCKER and isinstance(log, str) and not log.endswith("\n")


def _raised(fields: Mapping[str, object]) -> list[str]:
    """Return exceptions of which an object has the class in one field and the message in another."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        if name.endswith("type") and isinstance(value, str) and _CLASS.fullmatch(value):
            of = name.removesuffix("type")
            message = next((fields[one] for tail in ("value", "message") if (one := of + tail) in fields), None)
            if isinstance(message, str):
                found[of] = f"{value}: {message}"
    if len(found) > 1:
        found.pop("", None)  # of an object within, whose message stands for another field
    return list(dict.fromkeys(found.values()))


def _with(line: LogLine, facts: LogLine) -> LogLine:
    """Return a line with what the fields of its record say; a rank or node in the line itself is nearer."""
    return LogLine(
        line.text,
        line.time if facts.time is None else facts.time,
        facts.rank if line.rank is None else line.rank,
        facts.local_rank if line.local_rank is None else line.local_rank,
        line.node or facts.node,
        facts.pid if line.pid is None else line.pid,
    )


def _flat(given: object, depth: int) -> Iterator[tuple[str, object]]:
    """Yield names (in small letters, without marks between words) and values of an object, those of its own first.

    Texts of an object within are called by its name, too.
    """
    if not isinstance(given, dict) or not depth:
        return
    for name, value in given.items():
        if isinstance(value, list):
            yield _word(name), _letters(value)
            yield from _pairs(value[:_PAIRS])
            for one in value[:_DEPTH]:
                yield from _flat(one, depth - 1)
        elif not isinstance(value, dict):
            yield _word(name), value
        else:
            yield from ((_word(name) + _word(one), of_it) for one, of_it in value.items() if isinstance(of_it, str))
    for value in given.values():
        yield from _flat(value, depth - 1)


def _pairs(given: Sequence[object]) -> Iterator[tuple[str, object]]:
    """Yield the attributes of OpenTelemetry: objects with a key, and a value that is called by its type."""
    for one in given:
        if isinstance(one, dict) and isinstance(one.get("key"), str) and isinstance(one.get("value"), dict):
            yield from ((_word(one["key"]), value) for value in one["value"].values())


def _word(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def _letters(value: list[object]) -> str:
    """Return a list as text: bytes that are not UTF-8, as journald puts them, or the lines of a traceback."""
    if all(isinstance(one, int) and 0 <= one < 256 for one in value):
        return bytes(one for one in value if isinstance(one, int)).decode(errors="replace")
    return "\n".join(str(one).rstrip("\n") for one in value if isinstance(one, str))


def _number(fields: dict[str, object], names: tuple[str, ...], otherwise: int | None) -> int | None:
    for name in names:
        text = str(fields.get(name, ""))
        if text.isdecimal() and len(text) < 10:
            return int(text)
    return otherwise


def _time(value: object, until: float) -> float | None:
    if isinstance(value, bool):
        return None
    text = str(value) if isinstance(value, (int, float, str)) else ""
    if re.fullmatch(r"\d{10}(?:\.\d*)?|\d{13}|\d{16}|\d{19}", text):
        whole = text.partition(".")[0]
        return float(text) / float(10 ** (len(whole) - 10))
    return time_of(text, until) if text else None
