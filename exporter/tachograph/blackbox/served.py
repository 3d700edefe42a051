"""An exporter's side of a run's boxes, at `/api/blackbox/<run>`: its paths, its index, and which boxes to fetch.

Both ends of it are ours, and each takes the other for a stranger: an index is read field by field, and no name in it
becomes a path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from tachograph.blackbox.recorder import LARGEST_RANK
from tachograph.blackbox.standing import Known
from tachograph.files.plain_file import read_plain
from tachograph.files.unreadable import UNREADABLE
from tachograph.text.humanize import age
from tachograph.text.printable import printable

VERSION = 1
ROOT = "/api/blackbox/"
PAGE_ROOT = "/blackbox/"
MOST_BOXES = 4096
"""Boxes in one index, more than any node has."""

LARGEST_INDEX = 4 << 20
LARGEST_BOX = 1 << 20
"""Bytes; twice what an exporter keeps of a rank."""

KNOWN_FILE = "exporters.json"
"""What collect writes of the exporters' indexes beside the boxes: it has the ranks that could not leave one."""

LARGEST_KNOWN = 256 << 20
LARGEST_RAS = 4 << 20
LARGEST_ATTEMPT = 10**9
LONGEST = 256
"""Characters of a text in an index; the rest is cut off."""

MOST_WORLD = 1 << 17
"""Ranks of a run that can be missed by number."""

RAS_KINDS = ("json", "txt")
CAPTURED_TOGETHER_SECONDS = 10.0
"""A request so soon after another one for the same run is answered like that one: no rank is asked twice."""


@dataclass(frozen=True)
class ServedBox:
    """A box that an exporter has: made at Unix time `time`, by the clock of its node, for a reason.

    `asked` is whether it was requested, `past` whether its rank has gone on since it left it.
    """

    attempt: int
    rank: int
    time: float
    reason: str
    size: int
    asked: bool = False
    past: bool = False

    @property
    def is_evidence(self) -> bool:
        """Whether a standstill or a failure left it that lasts: what was requested since says no more."""
        return not (self.asked or self.past)


@dataclass(frozen=True)
class ServedRank:
    """An exporter's facts about a rank beside its box; texts are empty and numbers None where it knows nothing."""

    rank: int
    state: str
    step: int | None
    phase: str
    phase_seconds: float | None
    gpu: str
    coordinates: Mapping[str, int]
    where: str = ""
    """The line at which it stands by its last state, also where it cannot send a box."""

    @property
    def known(self) -> Known:
        """Return what its exporter says of it: `hung, step 41, at save.py:12 write, in phase checkpoint for 40 s`."""
        since = "" if self.phase_seconds is None else f" for {age(self.phase_seconds)}"
        step = "" if self.step is None else f"step {self.step}"
        place = f"at {self.where}" if self.where else ""
        parts = (self.state, step, place, f"in phase {self.phase}{since}" if self.phase else "")
        return Known("by its exporter " + ", ".join(part for part in parts if part), self.where or None)


@dataclass(frozen=True)
class ServedRun:
    """The index: the boxes and the ranks of a run that are on a node, at Unix time `time` by its clock.

    `ras` is how NCCL's own account can be had: json, txt, or empty; `ras_said` is what became of asking for it.
    """

    run: str
    node: str
    time: float
    world_size: int
    boxes: tuple[ServedBox, ...]
    ranks: tuple[ServedRank, ...]
    ras: str = ""
    ras_said: str = ""

    def as_json(self) -> bytes:
        """Return the index as it is served."""
        return json.dumps({"version": VERSION, **asdict(self)}, allow_nan=False).encode()


def known_ranks(runs: Iterable[ServedRun]) -> dict[int, Known]:
    """Return what exporters say of ranks; of one that is in several, the last of them."""
    return {rank.rank: rank.known for one in runs for rank in one.ranks}


def as_file(runs: Iterable[ServedRun]) -> bytes:
    """Return indexes as `KNOWN_FILE` holds them."""
    return b"[" + b",\n".join(run.as_json() for run in runs) + b"]\n"


def known_beside(directory: Path) -> dict[int, Known]:
    """Return what `KNOWN_FILE` of a folder says of ranks; nothing where there is none, or it is not ours."""
    try:
        return known_ranks([_run(one) for one in json.loads(read_plain(directory / KNOWN_FILE, LARGEST_KNOWN))])
    except (OSError, *UNREADABLE):
        return {}


def read_run(body: bytes) -> ServedRun:
    """Return an index; raise what reading a value of an unexpected form may raise, such as ValueError or KeyError."""
    return _run(json.loads(body))


def _run(said: Mapping[str, Any]) -> ServedRun:
    if said["version"] != VERSION:
        raise ValueError(f"version {said['version']!r:.20} of an index, and this is {VERSION}")
    boxes = tuple(
        ServedBox(
            _whole(one["attempt"], LARGEST_ATTEMPT), _whole(one["rank"], LARGEST_RANK), _number(one["time"]),
            _text(one["reason"]), _whole(one["size"], 1 << 40), one.get("asked") is True, one.get("past") is True,
        )
        for one in said["boxes"][:MOST_BOXES]
    )  # fmt: skip
    ranks = tuple(_rank(one) for one in said["ranks"][:MOST_BOXES])
    ras = said.get("ras", "")
    return ServedRun(
        _text(said["run"]), _text(said["node"]), _number(said["time"]), _whole(said["world_size"], LARGEST_RANK),
        boxes, ranks, ras if ras in RAS_KINDS else "", _text(said.get("ras_said", "")),
    )  # fmt: skip


def _rank(one: Mapping[str, Any]) -> ServedRank:
    where = one["coordinates"]
    if not isinstance(where, dict):
        raise TypeError("coordinates that are no object")
    return ServedRank(
        _whole(one["rank"], LARGEST_RANK), _text(one["state"]),
        None if one["step"] is None else _whole(one["step"], 1 << 62), _text(one["phase"]),
        None if one["phase_seconds"] is None else _number(one["phase_seconds"]), _text(one["gpu"]),
        {_text(axis)[:16]: _whole(place, LARGEST_RANK) for axis, place in list(where.items())[:16]},
        _text(one.get("where", "")),
    )  # fmt: skip


def _whole(value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{value!r:.40} instead of a whole number up to {most}")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 2**36:
        raise ValueError(f"{value!r:.40} instead of a number of seconds")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of a text")
    return printable(value[:LONGEST])


def index_path(run: str) -> str:
    """Return the path of a run's index."""
    return ROOT + quote(run, safe="")


def capture_path(run: str, *, ras: bool = False) -> str:
    """Return the path to which a request for new boxes is posted; with `ras`, NCCL's service is asked as well."""
    return index_path(run) + "/capture" + "?ras=1" * ras


def box_path(run: str, attempt: int, rank: int, *, asked: bool = False) -> str:
    """Return the path of a rank's box."""
    return f"{index_path(run)}/{attempt}/rank-{rank}{'.asked' * asked}.json"


def ras_path(run: str) -> str:
    """Return the path of what NCCL's RAS service said at the last capture."""
    return index_path(run) + "/ras"


def page_path(run: str) -> str:
    """Return the path of a run's page."""
    return PAGE_ROOT + quote(run, safe="")


def exporter_base(metrics_url: str) -> str:
    """Return the URL before the paths of an exporter, from that of its metrics; raise ValueError for what is none."""
    parts = urlsplit(metrics_url)
    if parts.scheme not in ("http", "https", "unix") or not parts.hostname:
        raise ValueError("not an http URL")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/").removesuffix("/metrics"), "", ""))


def shown(url: str) -> str:
    """Return a URL as it may be shown: without a user and password in it."""
    parts = urlsplit(url)
    return printable(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))


def exporters_query(run: str) -> str:
    """Return the PromQL of the targets that had a rank of a run within the hour."""
    name = json.dumps(run, ensure_ascii=False)
    return f"group by (job, instance) (last_over_time(tachograph_rank_info{{run={name}}}[1h]))"


def exporters_of(
    found: Iterable[Mapping[str, str]], targets: Iterable[tuple[Mapping[str, str], str]]
) -> tuple[list[str], list[str]]:
    """Return the bases of the exporters that the query found, and the instances that are no targets any more.

    `targets` are labels and the URL of the metrics.
    """
    wanted = {(one.get("job", ""), one.get("instance", "")) for one in found}
    bases: dict[str, None] = {}
    seen = set()
    for labels, url in targets:
        key = (labels.get("job", ""), labels.get("instance", ""))
        if key in wanted:
            bases[exporter_base(url)] = None
            seen.add(key)
    return list(bases), sorted(instance for _, instance in wanted - seen)


def newest(runs: Mapping[str, ServedRun]) -> list[tuple[str, ServedBox]]:
    """Return every rank's box of each attempt, with the address of the exporter that has it, in order.

    It is the newest, but one that a standstill or a failure left comes before what was requested since.
    """
    found: dict[tuple[int, int], tuple[str, ServedBox]] = {}
    for address, run in runs.items():
        for box in run.boxes:
            present = found.get((box.attempt, box.rank))
            if present is None or _place(present[1]) < _place(box):
                found[box.attempt, box.rank] = (address, box)
    return [found[key] for key in sorted(found)]


def _place(box: ServedBox) -> tuple[bool, float]:
    return box.is_evidence, box.time


def current(runs: Mapping[str, ServedRun]) -> list[tuple[str, ServedBox]]:
    """Return those of one attempt, the newest with a box whose rank has not gone on since; else the newest of all."""
    found = newest(runs)
    lasting = [box.attempt for _, box in found if not box.past]
    attempt = max(lasting or [box.attempt for _, box in found], default=0)
    return [(address, box) for address, box in found if box.attempt == attempt]


def box_fault(body: bytes, rank: int) -> str:
    """Return what is wrong with a box that an exporter sent as this rank's, empty for nothing."""
    try:
        box = json.loads(body)
    except (ValueError, RecursionError):
        return "it is not JSON"
    if not isinstance(box, dict):
        return "it is not an object"
    own = box.get("rank", rank)
    return "" if own == rank and not isinstance(own, bool) else f"it is of rank {printable(str(own)[:20])}"


def listed_exporters(groups: object) -> list[str]:
    """Return the bases of the exporters in the content of a file for Prometheus' file_sd_configs; raise ValueError."""
    found: dict[str, None] = {}
    try:
        for group in groups:  # type: ignore[attr-defined]
            labels = group.get("labels") or {}
            scheme, path = labels.get("__scheme__", "http"), labels.get("__metrics_path__", "/metrics")
            for target in group["targets"]:
                found[exporter_base(f"{scheme}://{target}{path}")] = None
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("not a list of targets, as file_sd_configs has it") from error
    return list(found)
