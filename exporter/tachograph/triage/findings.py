"""The result of a triage: how bad it is, where the cause lies, the likely failure mode, and who is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tachograph.findings.kinds import SEVERITIES
from tachograph.text.humanize import listed
from tachograph.triage.facts import FiringKind

NONE = "none"
MOST_NAMED = 8


@dataclass(frozen=True)
class TriageFinding:
    """The finding. `severity`: page, ticket, info or none; `since`: Unix time, None where it is not known."""

    severity: str
    category: str
    mode: str
    words: str = ""
    since: float | None = None
    ranks: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    pid: str = ""

    @property
    def wrong(self) -> bool:
        """Return whether a person is to do something."""
        return self.severity in ("page", "ticket")


@dataclass(frozen=True)
class QuestionAnswer:
    """The answer to a question of the tree: yes, no or unknown, with its evidence."""

    name: str
    question: str
    answer: str
    evidence: tuple[str, ...]
    alerts: tuple[str, ...] = ()


@dataclass(frozen=True)
class AskedSource:
    """Something that was asked, and what it gave: `ok`, and in words how it went."""

    name: str
    ok: bool
    words: str


@dataclass
class Triage:
    """Everything that the command says about a run at a moment."""

    run: str
    at: float
    finding: TriageFinding
    answers: Sequence[QuestionAnswer] = ()
    also: Sequence[str] = ()
    """Alerts that fire besides, in words."""
    sources: list[AskedSource] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    ranks: int = 0
    lost_share: float | None = None
    """Share of the run's GPUs that is lost while it lasts; None where it is not known, or nothing is wrong."""

    unsaved_seconds: float | None = None
    """Seconds since the last save, which a restart loses."""

    @property
    def lost_hours(self) -> float | None:
        """Return the GPU-hours that were lost since it began."""
        since = self.finding.since
        if since is None or self.lost_share is None or not self.ranks:
            return None
        return self.lost_share * self.ranks * (self.at - since) / 3600


def found_by(firing: FiringKind) -> TriageFinding:
    """Return the finding of an alert, as its row says."""
    gpus = tuple(
        f"{one.get('instance', '')}/{one['gpu']}"
        for one in firing.labels[:MOST_NAMED]
        if one.get("gpu") and one.get("uuid")
    )
    return TriageFinding(
        SEVERITIES[firing.severity], firing.kind.category, firing.kind.mode, "", firing.since,
        firing.named("rank"), firing.named("instance"), tuple(dict.fromkeys(gpus)),
    )  # fmt: skip


def named(labels: Mapping[str, str]) -> str:
    """Return a rank as it is referred to: `rank 5 (node-1, GPU 1)`."""
    gpu = f"GPU {labels['gpu']}" if labels.get("gpu") else ""
    place = ", ".join(filter(None, (labels.get("instance", ""), gpu)))
    return f"rank {labels.get('rank', '?')}" + (f" ({place})" if place else "")


def all_named(every: Sequence[Mapping[str, str]]) -> str:
    """Return several ranks."""
    return listed([named(one) for one in every], MOST_NAMED)
