"""Reads the output of `promtool test rules`, in both generations, when a test that expects nothing finds something.

::

  FAILED:
    alertname: RunHung, time: 1m20s,
        exp:[],
        got:[
            0:
              Labels:{alertname="RunHung", rank="25"}
              Annotations:{description="Run \\"a\\" is hanging."}
            ]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tachograph.text import duration

_PAIR = re.compile(r'(?:(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|"(?P<quoted>(?:[^"\\]|\\.)*)")="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[0-7]{3}|.)")
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NOISE = re.compile(r"\s*(|Unit Testing:.*|FAILED:|SUCCESS|exp:\[\],\s*|got:\[\s*|\d+:|\])\s*")

Labels = Mapping[str, str]


class ActiveAlert(NamedTuple):
    """An alert that fires at a moment."""

    seconds: float
    labels: Labels
    annotations: Labels


@dataclass
class PromtoolOutput:
    """The output of promtool: alerts by moment, and its errors."""

    alerts: list[ActiveAlert] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def read(lines: Iterable[str]) -> PromtoolOutput:
    """Parse promtool's output; a line of another form is an error."""
    output = PromtoolOutput()
    seconds, labels = 0.0, {}
    for line in lines:
        text = line.strip()
        if found := re.fullmatch(r"alertname: .*, time: (\S+?),", text):
            seconds = duration.parse(found[1])
        elif text.startswith("Labels:{"):
            labels = label_set(text)
        elif text.startswith("Annotations:{"):
            output.alerts.append(ActiveAlert(seconds, labels, label_set(text)))
        elif not _NOISE.fullmatch(line):
            output.errors.append(text)
    return output


def label_set(text: str) -> dict[str, str]:
    """Return the labels of a text such as `{alertname="RunHung", run="a\\"b"}`."""
    return {found["name"] or unquoted(found["quoted"]): unquoted(found["value"]) for found in _PAIR.finditer(text)}


def unquoted(text: str) -> str:
    """Return the text that Go's %q has quoted; bytes that are not UTF-8 become what Prometheus shows for them."""
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    return _SIMPLE.get(code, code)
