"""Whether a silence of an Alertmanager covers what was found: then a person is working on it, and nothing is done.

It is asked beside the supervisor's loop, only while something is wrong. What it does not say is not known: a false
action costs without bound and a missed one does not, so without an answer nothing is done either.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from tachograph.servers.server_address import DEFAULT_PORT
from tachograph.silence.alertmanager import Silence, SilenceMatcher, Silences
from tachograph.supervise.asked_beside import KNOWN_SECONDS, WAIT_SECONDS, AskedBeside
from tachograph.supervise.decision import SILENCE, WAIT, Hold
from tachograph.supervise.run_seen import RunSeen
from tachograph.supervise.triggers import ALERTS, RunFinding
from tachograph.text.printable import printable
from tachograph.text.redact import redact

FRESH_SECONDS = 10.0
"""Age of an answer from which it is asked again."""

PATIENCE_SECONDS = 15.0
"""After a question, within which its answer may still come."""

LONGEST_PATTERN, MOST_REPEATS = 300, 3
_REPEATED_GROUP, _REPEAT = re.compile(r"\)[*+?{]"), re.compile(r"[*+?{]")
"""Of a regular expression that is tried: another may take Python's for ever, where Alertmanager's takes its time."""

COMPONENT = "tachograph"


class MaintenanceSilences:
    """The silences of the Alertmanager at an address; raises AlertmanagerError where that is none."""

    def __init__(self, address: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silences: AskedBeside[Sequence[Silence]] = AskedBeside(
            "silences", Silences(address).current, clock,
            lambda error: say(f"{error}. Nothing is done about what is found until it answers"),
        )  # fmt: skip
        self._silences.ask()  # so that an address which is wrong is said before the first night

    def hold(self, finding: RunFinding, seen: RunSeen, wait: bool) -> Hold | None:
        """Return what holds back an action, None if nothing does; `wait` for an answer of now, a few seconds."""
        asked = self._silences
        if asked.age() > FRESH_SECONDS:
            asked.ask(WAIT_SECONDS if wait else 0.0)
        answer = asked.answer
        if answer is None or asked.age() > KNOWN_SECONDS:
            if asked.error or wait or self._clock() - asked.asked > PATIENCE_SECONDS:
                why = asked.error or "it has not answered in time"
                return Hold(SILENCE, f"whether a silence covers it is not known: {why}")
            return Hold(WAIT, "Alertmanager is being asked for silences")
        labels = labels_of(finding, seen)
        found = next((one for one in answer.content if one.state == "active" and covers(one, labels)), None)
        if found is None:
            return None
        until = f"{found.ends:%Y-%m-%d %H:%M} UTC"
        text = f"a silence of {found.by} covers it until {until}: {redact(found.why)[:100]} ({found.id})"
        return Hold(SILENCE, printable(text))


def hosts_of(seen: RunSeen) -> list[str]:
    """Return the names of the nodes that show a run, and of this one, as an alert may have them."""
    of_ranks = [rank.node for rank in seen.ranks]
    hosts = dict.fromkeys(name for name in (seen.node, *of_ranks, socket.gethostname()) if name)
    return [*hosts, *dict.fromkeys(name.partition(".")[0] for name in hosts)]


def labels_of(finding: RunFinding, seen: RunSeen) -> Mapping[str, Sequence[str]]:
    """Return the labels that the alerts of a finding have, as far as they are known here, each with what it may be."""
    nodes = hosts_of(seen)
    labels: dict[str, Sequence[str]] = {
        "run": [seen.name], "rank": [str(rank) for rank in finding.ranks], "component": [COMPONENT], "node": nodes,
        "instance": [*nodes, *(f"{node}:{DEFAULT_PORT}" for node in nodes)],
    }  # fmt: skip
    if finding.trigger in ALERTS:
        labels["alertname"] = ALERTS[finding.trigger]
    return labels


def covers(silence: Silence, labels: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a silence may be one of an alert; what is not known of that, such as its cluster, may be so."""
    return all(_may_match(matcher, labels.get(matcher.name)) for matcher in silence.matchers)


def _may_match(matcher: SilenceMatcher, values: Sequence[str] | None) -> bool:
    if values is None:
        return True
    if matcher.name == "instance" and not matcher.regex:
        values = [*values, *(value for value in [matcher.value] if value.rpartition(":")[0] in values)]
    if not matcher.regex:
        return any((value == matcher.value) is matcher.equal for value in values)
    if len(matcher.value) > LONGEST_PATTERN or _REPEATED_GROUP.search(matcher.value):
        return True
    if len(_REPEAT.findall(matcher.value)) > MOST_REPEATS:
        return True
    try:
        pattern = re.compile(matcher.value)
    except (re.error, OverflowError, RecursionError):
        return True
    return any((pattern.fullmatch(value) is not None) is matcher.equal for value in values)
