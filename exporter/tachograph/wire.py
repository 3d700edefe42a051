"""The frames between a rank and the exporter: version, limits, numbers, histogram buckets, the socket's place.

Documented for other languages in `docs/protocol.md`. Standard library only: both ends import it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from tachograph.text.printable import printable

VERSION = 1
MAX_FRAME_BYTES = 65536
MAX_NAME_BYTES = 128
"""Of a run's name or a GPU's UUID in UTF-8: Prometheus counts bytes, and the shipped configuration takes 256."""

MAX_RUN_BYTES = 191
"""Of a run's name with its role: an owner's name fits before it."""

MAX_EVENTS = 64
MAX_NOTICES = 6
"""Of wrong uses of the client, in a state frame."""

MAX_NOTICE_BYTES = 200
MAX_WHERE_BYTES = 160
"""Of the line at which a rank stands still: with a name of a run it fits into a label."""

STACKS_BYTES, STACKS_BEGIN = 131_072, 64
"""Size of the memory in which a stuck process leaves its stacks, and where they begin."""

MAX_PATH_BYTES = 1024
"""Of the place of a checkpoint."""

MAX_OWN_METRICS = 16
MAX_DESCRIPTION_BYTES = 200
"""Of a metric that the run declared itself, in the hello."""

MAX_BOX_BYTES = 512 * 1024
"""Of a rank's box, in all its parts."""

MAX_BOX_PARTS = 64
BOX_PART_BYTES = 30_000
"""Of the text in one part as our client sends it: with every character escaped it still fits into a frame."""

MAX_BOX_REASON_BYTES = 128
MAX_RATE_HZ = 10.0
HEARTBEAT_SECONDS = 1.0
SOCKET_ENVIRONMENT = "TACHOGRAPH_SOCKET"
SYSTEM_SOCKET = "/run/tachograph/rank.sock"

BOX_ASKED_FOR = "asked for"
BOX_REQUESTS = (BOX_ASKED_FOR, "SIGUSR2")
"""Reasons of boxes that somebody requested. All others are of a standstill or a failure, which a request cannot repeat:
they are kept apart, in memory and in files."""

HISTOGRAM_SCHEMA = 3
"""Eight buckets to a factor of two: a bucket's bounds are 9 % apart."""

HISTOGRAM_INDEX_RANGE = (-240, 240)
"""Buckets from 1 ns to 34 years of seconds at schema 3; anything outside is counted in the outermost bucket."""

FINE_SCHEMA = 5
"""Thirty-two buckets to a factor of two: bounds 2.2 % apart."""

FINE_INDEX_RANGE = (-256, 288)
"""Buckets from 3.9 ms to 512 s at FINE_SCHEMA; anything outside is counted in the outermost bucket."""

MAX_FINE_BUCKETS = 320
"""Of a rank that are not empty: as many as ten factors of two have."""

OUTCOMES = ("finished", "failed")

_SPECIAL = {"NaN": math.nan, "+Inf": math.inf, "Inf": math.inf, "-Inf": -math.inf}


def encode_number(value: float) -> float | str:
    """Return `value`, or the string that stands for it in JSON where it is NaN or infinite."""
    if math.isnan(value):
        return "NaN"
    if value in (math.inf, -math.inf):
        return "+Inf" if value > 0 else "-Inf"
    return value


def jsonable(value: object) -> object:
    """Return a value of mappings and sequences as JSON takes it, each number encoded."""
    if isinstance(value, Mapping):
        return {key: jsonable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(each) for each in value]
    return encode_number(value) if isinstance(value, float) else value


def decode_number(value: object) -> float:
    """Return the number a frame carries; raise ValueError for anything that is not one."""
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    raise ValueError("expected a number, or one of the strings NaN, +Inf, -Inf")


def fits(text: str, longest: int) -> bool:
    """Return whether `text` is printable and has at most `longest` bytes in UTF-8, as a label value must."""
    return text.isprintable() and (len(text.encode()) if not text.isascii() else len(text)) <= longest


def cut(text: str, longest: int) -> str:
    """Return the beginning of `text`, at most `longest` bytes in UTF-8, with what is not printable replaced."""
    return printable(text[:longest]).encode()[:longest].decode(errors="ignore")


def is_name(text: str) -> bool:
    """Return whether `text` can name something in a frame: printable, 1 to MAX_NAME_BYTES bytes in UTF-8."""
    return text != "" and fits(text, MAX_NAME_BYTES)


def is_role(text: str, run: str) -> bool:
    """Return whether `text` can be a role of a run: a name without a slash, at most MAX_RUN_BYTES with the run's."""
    return is_name(text) and "/" not in text and fits(with_role(run, text), MAX_RUN_BYTES)


def with_role(run: str, role: str) -> str:
    """Return the name by which a group of ranks goes: the run's, and its role if it has one, as `ppo/critic`."""
    return f"{run}/{role}" if role else run


def without_role(name: str, role: str) -> str:
    """Return the run of which a group of ranks is a role, by the name that the group goes by."""
    return name.removesuffix(f"/{role}") if role else name


def bucket_index(value: float, schema: int = HISTOGRAM_SCHEMA) -> int:
    """Return the base-2 exponential bucket i with 2^((i-1)/2^schema) < value <= 2^(i/2^schema), clamped to its range.

    The buckets of Prometheus' native histograms, so that they merge by adding at any level.
    """
    low, high = HISTOGRAM_INDEX_RANGE if schema == HISTOGRAM_SCHEMA else FINE_INDEX_RANGE
    if not value > 0:
        return low
    exact = math.log2(value) * (1 << schema)
    return min(max(math.ceil(exact - 1e-9), low), high)  # log2 of a bound may come out a hair above its integer


def reduced(fine: Mapping[int, int]) -> dict[int, int]:
    """Return counts at FINE_SCHEMA as counts at HISTOGRAM_SCHEMA, exactly: four buckets become one."""
    counts: dict[int, int] = {}
    for index, count in fine.items():
        coarse = -(-index >> FINE_SCHEMA - HISTOGRAM_SCHEMA)
        counts[coarse] = counts.get(coarse, 0) + count
    return counts


def socket_path(environment: Mapping[str, str] | None = None) -> str:
    """Return where ranks and exporter meet: `$TACHOGRAPH_SOCKET`, the system folder, or the user's runtime folder."""
    env: Mapping[str, str] = os.environ if environment is None else environment
    if given := env.get(SOCKET_ENVIRONMENT):
        return given
    folder = os.path.dirname(SYSTEM_SOCKET)  # noqa: PTH120 - pathlib costs 3 ms and 0.7 MB to import
    runtime = env.get("XDG_RUNTIME_DIR")
    if os.access(folder, os.X_OK) or os.access(os.path.dirname(folder), os.W_OK) or not runtime:  # noqa: PTH120
        return SYSTEM_SOCKET
    return f"{runtime}/tachograph/rank.sock"
