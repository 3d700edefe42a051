"""Label matchers of Alertmanager's configuration, in each of its notations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_MATCHER = re.compile(
    r"""\s*,?\s*(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)\s*(?P<operator>=~|!~|!=|=)\s*
    (?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^",]*))\s*,?\s*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class LabelMatcher:
    """A condition on one label; a missing label counts as empty."""

    label: str
    operator: str
    value: str

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self.value if "~" in self.operator else re.escape(self.value), re.DOTALL)

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels match; patterns match the whole value."""
        found = self._pattern.fullmatch(labels.get(self.label, "")) is not None
        return found is not self.operator.startswith("!")


LabelMatchers = tuple[LabelMatcher, ...]


def all_hold(matchers: LabelMatchers, labels: Mapping[str, str]) -> bool:
    """Return whether the labels match every matcher."""
    return all(matcher.holds(labels) for matcher in matchers)


def read(section: Mapping[str, Any], side: str = "") -> LabelMatchers:
    """Return the matchers of a route (`side` empty) or of one side of an inhibition (`source_`, `target_`).

    `matchers` are texts; `match` and `match_re` are the notation from before Alertmanager 0.22.
    """
    texts = section.get(f"{side}matchers") or ()
    return (
        *(one for text in ([texts] if isinstance(texts, str) else texts) for one in parse(text)),
        *(LabelMatcher(label, "=", str(value)) for label, value in (section.get(f"{side}match") or {}).items()),
        *(LabelMatcher(label, "=~", str(value)) for label, value in (section.get(f"{side}match_re") or {}).items()),
    )


def parse(text: str) -> Iterable[LabelMatcher]:
    """Return the matchers of a text such as `severity="critical"` or `{run=~"a|b", tier!=dev}`."""
    return tuple(_parse(text))


def _parse(text: str) -> Iterator[LabelMatcher]:
    rest = text.strip()
    if rest.startswith("{") and rest.endswith("}"):
        rest = rest[1:-1]
    while rest:
        found = _MATCHER.match(rest)
        if found is None:
            raise ValueError(f"not a matcher: {text}")
        quoted = found["quoted"]
        value = found["plain"].strip() if quoted is None else re.sub(r"\\(.)", _unescaped, quoted)
        yield LabelMatcher(found["label"], found["operator"], value)
        rest = rest[found.end() :]


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1] if found[1] in '"\\' else found[0]
