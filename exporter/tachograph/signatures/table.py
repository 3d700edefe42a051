"""The table of signatures (signatures.yaml), and the classification of a text by it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tachograph.catalog.rank import FAILURE_CATEGORIES as CATEGORIES
from tachograph.signatures.codes import CodeError, codes_of_rows, has_word
from tachograph.signatures.evidence import LEAST, LEAST_REPORTED, Scales, WordWeight, compiled

ROLES = ("root", "confirmation", "cascade", "advice")
"""How much a line says about the cause, the most first; a line of an earlier role is preferred whenever it came."""

PATH = Path(__file__).with_name("signatures.yaml")
CODES = Path(__file__).with_name("codes.yaml")
_NEVER = re.compile(r"(?!)")
LONGEST = 1024
"""Letters of a line that are looked at; a message that needs more to be recognised is not known."""

SPEAKERS = ("program", "launcher", "scheduler", "kernel")
"""Who prints a line; a program says of itself what the others confirm from outside."""
MOODS = ("possibility", "warning", "retry", "skip")
"""What a line may make of a failure that it speaks of: then it is neither a cause nor a confirmation."""
HANDLED = ("retry", "skip")
_MILD = ("warning", *HANDLED)
_AN_ERROR = re.compile(r"(?:[\w.]+\.\w*Error|\w+Error|(?:[\w.]+\.)?\w*Exception)\b")
"""What a line begins with that has the text of an exception; a sentence may begin with `Error`, too."""
_A_WARNING = re.compile(r"(?:\S+:\d+: |\[[^\]]*\][: ]*)*(?:\w+\.)*\w*Warning: ")
"""What one begins with that has the text of a Python warning: with the file, or PyTorch's prefix, before it."""
_DOTTED = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){1,8}_?[A-Z]\w{0,60}(?::\s|$)")
"""The last line of a traceback, if that is all that is known of it."""
_COUNTED_NONE = re.compile(
    r"\b(?![A-Z]\w{0,40}(?:Error|Exception): 0$)(\w{1,40})(?: ?[=:] ?| )0(?![\d.%\w:]|/\d+ nodes)"
)
"""A counter of zero; if it counts failures, there was none. `KeyError: 0` at the end of a line is an exception."""
_NONE_OF = re.compile(r"(?:^|[:,;(|]) ?0 (?:[a-z-]{1,20} ){0,2}(?:errors|failures|faults|timeouts)\b")
"""A count of none that stands before what it counts."""
_NONE = re.compile(r"[=: ]0(?![\d.%\w:])")
"""What such a counter has in it, to find at once that there is none."""
_OF_FAILURES = re.compile(
    r"err|fail|nan|inf|skip|timeout|corrupt|trunc|preempt|evict|kill|drop|retr|oom|abort|overflow|reset|lost|miss"
    r"|unreach|throttl|timed",
    re.IGNORECASE,
)
_CAPITAL = re.compile(r"(?<!\\)[A-Z](?!<)")
"""A capital letter of a pattern, but for classes such as \\S, and for the P of named groups."""

_LEADS = 9
"""Letters of a word of codes.yaml by which its line is found: the fewer, the less memory to look for all at once."""

_FIELDS = {
    "name", "category", "role", "example", "find", "pattern", "pattern_not", "case", "weak", "peer", "by", "alone",
    "handled", "despite", "words", "frames", "cause", "next",
}  # fmt: skip
_KINDS = ("exception", "level", "said")
_PLAIN = re.compile(r"[\w /'<>&,=#%!~@\"-]+")
"""A pattern that is a mere text: it is looked for as if it stood in `find`, too."""


class SignatureError(Exception):
    """The table is not valid; the text names the row and what was expected."""


class LogSignature(NamedTuple):
    """A row of the table; signatures.yaml says what its fields mean, codes.yaml what `codes` are.

    `texts`: a line must have one of them: `find`, and what those of `codes` begin with that have none of it in them.
    """

    name: str
    category: str
    role: str
    find: tuple[str, ...]
    pattern: re.Pattern[str] | None
    pattern_not: re.Pattern[str] | None
    codes: tuple[str, ...]
    texts: tuple[str, ...]
    weak: bool
    peer: bool
    by: str
    alone: bool
    handled: bool
    case: bool
    anchored: bool
    despite: tuple[str, ...]
    evidence: tuple[WordWeight, ...]
    example: str
    cause: str
    next: tuple[str, ...]

    @property
    def order(self) -> tuple[int, bool]:
        """Return what a line of this row is sorted by: the most telling role first, weak rows after the others."""
        return ROLES.index(self.role), self.weak

    def matches(self, line: str, low: str) -> bool:
        """Return whether the row's patterns accept a line that has one of `find` in it; `low`: in small letters."""
        if self.codes and self.pattern is None and not any(text in low for text in self.find):
            return False
        text = line if self.case else low
        if self.pattern is not None and not self.pattern.search(text):
            return False
        return self.pattern_not is None or not self.pattern_not.search(text)

    def may_match(self, line: str, low: str) -> bool:
        """Return whether the row may match a line without what stands before its message, if that is not known yet."""
        if self.pattern is None or self.anchored or self.pattern.search(line if self.case else low):
            return True
        return has_word(self.codes, low)


class SignatureTable(NamedTuple):
    """The rows in their order, the version of the table, and which rows each text of `find` leads to.

    `general`: the rows with `words` and those behind them; `scales`: weighs what speaks for the former.
    `warned`: the row of a Python warning that no special row knows, None if there is none.
    `exception` and `level`: what a line looks like that reports an error, `said`: one that may.
    """

    version: str
    rows: tuple[LogSignature, ...]
    by_text: Mapping[str, tuple[int, ...]]
    moods: Mapping[str, re.Pattern[str]]
    general: range
    warned: int | None
    scales: Scales
    exception: re.Pattern[str]
    level: re.Pattern[str]
    said: re.Pattern[str]

    def mood(self, line: str, row: int) -> str:
        """Return which of MOODS a line has that a row (-1: none) matched; an exception's means what it says: ""."""
        if _AN_ERROR.match(line):
            return ""
        known = self.rows[row] if row >= 0 else None
        if known is not None and known.by != "program":
            return ""
        despite = known.despite if known else ()
        return next((name for name, form in self.moods.items() if name not in despite and form.search(line)), "")

    def handled(self, line: str) -> str:
        """Return which of HANDLED a line says of what stands beside it, "" if it says neither."""
        return next((name for name in HANDLED if self.moods[name].search(line)), "")

    def classify(self, line: str, frame: str = "", *, failed: bool = False) -> LogSignature | None:
        """Return the row of one line, None if there is none; `frame`: where an exception was raised.

        `failed`: it is of something that failed, so that plain sentences are weighed, too.
        """
        low = line[:LONGEST].lower()
        found = (number for number, row in enumerate(self.rows) if any(text in low for text in row.texts))
        number = self.decide(line, found, raised=bool(frame or _DOTTED.match(line)), frame=frame)
        if number is None and failed and self.said.search(low):
            number = self.scales.weigh(line[:LONGEST], frame)
        return self._as_meant(line, number)

    def _as_meant(self, line: str, number: int | None) -> LogSignature | None:
        """Return a line's row as the line means it: what it only warns of, or passes over, is advice."""
        is_warning = bool(_A_WARNING.match(line))
        by_words = number in self.general
        if is_warning and self.warned is not None and (number is None or by_words):
            return self.rows[self.warned]
        if number is None:
            return None
        row = self.rows[number]
        is_mild = is_warning or (by_words and self.mood(line, number) in _MILD)
        return row._replace(role="advice") if is_mild and row.role == "root" else row

    def decide(self, line: str, found: Iterable[int], *, raised: bool = False, frame: str = "") -> int | None:
        """Return the row of a line that has texts of the rows `found`, in their order.

        `raised`: it is an exception's, and `frame` is where. Of one that no special row knows, its words are weighed.
        """
        line = _without_zeros(line[:LONGEST])
        low = line.lower()
        general: list[int] = []
        special: int | None = None
        for number in found:
            row = self.rows[number]
            if number in self.general:
                general.append(number)
            elif has_word(row.codes, low):
                if special is None or row.role == "root":
                    return number
            elif special is None and row.matches(line, low):
                if row.role != "root":
                    return number
                special = number  # unless a later root's word of a closed vocabulary is in the line
        if special is not None:
            return special
        raised = raised or bool(self.exception.search(line))
        least = LEAST if raised else LEAST_REPORTED
        if (raised or self.level.search(line)) and (worded := self.scales.weigh(line, frame, least)) is not None:
            return worded
        found_general = next((number for number in general if self.rows[number].matches(line, low)), None)
        return self.general[-1] if raised and found_general is None and self.general else found_general

    def may_decide(self, line: str, found: Iterable[int]) -> bool:
        """Return whether a line may be of one of the rows `found`, or an error, whatever stands before its message."""
        line = _without_zeros(line)
        low = line.lower()
        return any(self.rows[number].may_match(line, low) for number in found) or self.is_error(line)

    def is_error(self, line: str) -> bool:
        """Return whether a line reports an error."""
        return bool(self.exception.search(line) or self.level.search(line))


@cache
def table() -> SignatureTable:
    """Return the table that is shipped, read once."""
    return parse(PATH.read_text(encoding="utf-8"), CODES.read_text(encoding="utf-8"))


def parse(text: str, codes: str = "{}") -> SignatureTable:
    """Return the table of a YAML text, with the closed vocabularies of another; raise SignatureError."""
    import yaml  # here, not above: the --help of the command does not need it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = yaml.load(text, Loader=loader)
        words = codes_of_rows(yaml.load(codes, Loader=loader))
    except yaml.YAMLError as error:
        raise SignatureError(f"not YAML: {error}") from error
    except CodeError as error:
        raise SignatureError(str(error)) from error
    if not isinstance(content, dict) or not isinstance(content.get("signatures"), list) or "version" not in content:
        raise SignatureError("expected `version` and a list `signatures`")
    rows = tuple(_row(given, number, words) for number, given in enumerate(content["signatures"]))
    names = [row.name for row in rows]
    if unknown := set(words) - set(names):
        raise SignatureError(f"codes: no row {', '.join(sorted(unknown))}")
    if twice := {name for name in names if names.count(name) > 1}:
        raise SignatureError(f"given twice: {', '.join(sorted(twice))}")
    moods = content.get("moods", {})
    if not isinstance(moods, dict) or set(moods) - set(MOODS):
        raise SignatureError(f"moods: expected some of {', '.join(MOODS)}")
    found: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        for one in row.texts:
            found.setdefault(one, []).append(number)
    if (warned_row := content.get("warned")) is not None and warned_row not in names:
        raise SignatureError(f"warned: no row {warned_row!r}")
    warned = names.index(warned_row) if warned_row is not None else None
    forms = {name: _pattern(moods.get(name, []), re.IGNORECASE, f"moods: {name}") or _NEVER for name in MOODS}
    errors = content.get("errors", {})
    if not isinstance(errors, dict) or set(errors) - set(_KINDS):
        raise SignatureError(f"errors: expected {' and '.join(_KINDS)}")
    exception, level, said = (_pattern(errors.get(kind, []), 0, f"errors: {kind}") or _NEVER for kind in _KINDS)
    general = range(next((number for number, row in enumerate(rows) if row.evidence), len(rows)), len(rows))
    made = SignatureTable(
        str(content["version"]), rows, {one: tuple(numbers) for one, numbers in found.items()}, forms,
        general, warned, Scales([one for row in rows for one in row.evidence]), exception, level, said,
    )  # fmt: skip
    if hidden := shadowed(made):
        raise SignatureError("; ".join(hidden))
    return made


def shadowed(made: SignatureTable) -> list[str]:
    """Return which rows do not win for their own example, and what does."""
    winners = [(row, made.classify(row.example)) for row in made.rows]
    return [
        f"{row.name}: its example is {'matched by no row' if winner is None else f'shadowed by {winner.name}'}"
        for row, winner in winners
        if winner is not row
    ]


def classify(text: str, frame: str = "", *, failed: bool = False) -> LogSignature | None:
    """Return what a text says, from the line of it that tells most; None if no line is known.

    `failed`: it is of something that failed, so that plain sentences count if nothing else does.
    """
    found = [row for line in text.splitlines() if (row := table().classify(line, frame))]
    if not found and failed:
        found = [row for line in text.splitlines() if (row := table().classify(line, frame, failed=True))]
    return min(found, key=lambda row: row.order, default=None)


def _without_zeros(line: str) -> str:
    """Return a line without counters that say that nothing failed."""
    if not _NONE.search(line):
        return line
    line = _NONE_OF.sub(" ", line)
    return _COUNTED_NONE.sub(lambda match: " " if _OF_FAILURES.search(match[1]) else match[0], line)


def _row(given: object, number: int, codes: Mapping[str, tuple[str, ...]]) -> LogSignature:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise SignatureError(f"row {number + 1}: expected a mapping with a name")
    where = f"row {number + 1} ({given['name']})"
    if unknown := set(given) - _FIELDS:
        raise SignatureError(f"{where}: unknown fields {', '.join(sorted(map(str, unknown)))}")
    for field, allowed in (("category", CATEGORIES), ("role", ROLES)):
        if given.get(field) not in allowed:
            raise SignatureError(f"{where}: {field} {given.get(field)!r} is none of {', '.join(allowed)}")
    case = bool(given.get("case"))
    words = given.get("words", {})
    evidence = _evidence(number, words, given.get("frames", []), where)
    wanted, excluded = (_pattern(given.get(name, []), 0, where) for name in ("pattern", "pattern_not"))
    plain = [] if case else [one for one in given.get("pattern", []) if _PLAIN.fullmatch(one)]
    find = given.get("find", [] if words or plain else None)
    if (
        not isinstance(find, list)
        or not (find or words or plain)
        or not all(isinstance(one, str) and one == one.lower() for one in find)
    ):
        raise SignatureError(f"{where}: find must be a list of texts in lower case")
    steps = given.get("next", [])
    if not isinstance(steps, list) or not all(isinstance(one, str) for one in steps) or not given.get("cause"):
        raise SignatureError(f"{where}: expected a cause, and a list of texts as next")
    if not isinstance(given.get("example"), str):
        raise SignatureError(f"{where}: expected an example, a line that this row alone decides")
    if given.get("by", "program") not in SPEAKERS:
        raise SignatureError(f"{where}: by {given.get('by')!r} is none of {', '.join(SPEAKERS)}")
    despite = given.get("despite", [])
    if not isinstance(despite, list) or set(map(str, despite)) - set(MOODS):
        raise SignatureError(f"{where}: despite must be a list of {', '.join(MOODS)}")
    forms = [one for name in ("pattern", "pattern_not") for one in given.get(name, [])]
    forms += [one for weighted in words.values() for one in weighted]
    if not case and (capital := next((one for one in forms if _CAPITAL.search(one)), None)):
        raise SignatureError(f"{where}: {capital!r} has capital letters; without `case` lines are read in small ones")
    find = list(dict.fromkeys((*find, *plain)))
    own = codes.get(given["name"], ())
    leads = dict.fromkeys(one[:_LEADS] for one in own if not any(text in one for text in find))
    return LogSignature(
        name=given["name"],
        category=given["category"],
        role=given["role"],
        find=tuple(find),
        pattern=wanted,
        pattern_not=excluded,
        codes=own,
        texts=(*find, *leads),
        weak=bool(given.get("weak")),
        peer=bool(given.get("peer")),
        by=str(given.get("by", "program")),
        alone=bool(given.get("alone")),
        handled=bool(given.get("handled")),
        case=case,
        anchored=any("^" in one for one in given.get("pattern", [])),
        despite=tuple(map(str, despite)),
        evidence=evidence,
        example=given["example"],
        cause=str(given["cause"]),
        next=tuple(steps),
    )


def _evidence(number: int, words: object, frames: object, where: str) -> tuple[WordWeight, ...]:
    if not isinstance(words, dict) or not all(isinstance(weight, int) and weight > 0 for weight in words):
        raise SignatureError(f"{where}: words must be lists of regular expressions by weight")
    for forms in (*words.values(), frames):
        _pattern(forms, 0, where)
    return tuple(compiled(number, words, frames)) if isinstance(frames, list) else ()


def _pattern(given: object, flags: int, where: str) -> re.Pattern[str] | None:
    if not isinstance(given, list) or not all(isinstance(one, str) and one for one in given):
        raise SignatureError(f"{where}: a pattern must be a list of regular expressions")
    try:
        return re.compile("|".join(given), flags) if given else None
    except re.error as error:
        raise SignatureError(f"{where}: {error}") from error
