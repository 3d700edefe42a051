"""The words of ranks, such as phases, states and reasons of ends, and what the exporter knows of a rank by itself.

What a rank reports is in `train.py` and `learning.py`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from tachograph.catalog.metric import GAUGE, GPU, INFO, RANK, Rows

PhaseName = Literal[
    "init", "data", "copy", "forward", "backward", "optimizer", "collective", "checkpoint", "eval", "other",
    "generate", "reward", "sync",
]  # fmt: skip
PHASES: tuple[str, ...] = get_args(PhaseName)
"""Phases of a rank; `copy` moves a batch to the device, `other` is time outside every named phase."""
GENERATION = ("generate", "reward", "sync")
"""Phases of a loop that generates what it trains on: sampling, rewarding, and sending weights to an engine."""
USUAL_PHASES = tuple(name for name in PHASES if name not in GENERATION)
"""Phases that every loop may have, and always has series for; a loop that generates also has those in GENERATION."""
PAUSES = ("init", "checkpoint", "eval", *GENERATION)
"""Phases in which a rank has good reason to complete no step."""
SHORTEST_SAVE_SECONDS = 0.1
"""Anything shorter in phase `checkpoint` is not a save, because a loop may only ask there whether one is due."""

OWN_PHASES = tuple(name for name in PHASES if name not in ("collective", *PAUSES))
"""Phases that every step goes through, and in which the rank does work of its own. In collectives it waits for others;
pauses come on their own schedule."""

StepTag = Literal["gc", "eval", "checkpoint", "compile", "warm-up", "restart"]
STEP_TAGS: tuple[str, ...] = get_args(StepTag)
"""Reasons why a step is not an ordinary one and is left out of every baseline."""

PAUSE_SHARE = 0.05
"""The most that a checkpoint may take of the time between the ends of two steps if the second is to be an ordinary one.
A loop may enter the phase `checkpoint` after every step and save once an hour."""

RECENT_SECONDS = 20.0
"""How far back from the end of the last ordinary step counts as recent."""

RECENT_STEPS = 3
"""How many ordinary steps count as recent however long they take."""

LOST_CAUSES = ("init", "data", "collective", "checkpoint", "eval", "restart", "rework", "hang")
"""Causes of lost time. `rework` repeats steps that an earlier attempt had completed; `restart` is the time between two
attempts."""

STATES = ("running", "frozen", "dead", "failed", "finished")
"""States of a rank, as the exporter concludes them; exactly one is 1."""

ALIVE = ("running", "frozen")
"""The states of a rank whose process exists."""

OperationName = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier", "other"
]  # fmt: skip
OPERATIONS: tuple[str, ...] = get_args(OperationName)
"""Collective operations, as PyTorch names them."""

DIMENSIONS = ("pp", "tp", "cp", "ep", "dp", "fsdp")
"""Dimensions of a run's parallelism: pipeline, tensor, context, expert, data, and data with sharded parameters."""

NONFINITE_SOURCES = ("loss", "grad_norm")

TierName = Literal["hero", "standard", "dev"]
TIERS: tuple[str, ...] = get_args(TierName)
"""Tiers of a run, which decide how its alerts are routed; the default is `standard`."""

SET_BY = ("run", "site", "default")
"""Who set a limit that applies to a run; the first of these that set one takes precedence."""

EXIT_CODE = "exit_code"
FAILURE_REASONS = ("oom", "nonfinite", "collective", "data", "terminated", "interrupted", EXIT_CODE, "exception")
"""Reasons a rank gives for its failure: `terminated` by SIGTERM, SIGHUP or a signal that warns of them, `interrupted`
from the keyboard, `exit_code` if all that is known is a non-zero exit code, `exception` for any other."""

END_SIGNALS: Mapping[int, str] = MappingProxyType(
    {signal.SIGHUP: "terminated", signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
)
"""The signals with which a terminal or a scheduler ends a process."""

WARNING_SIGNALS: Mapping[int, str] = MappingProxyType(
    dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU), "terminated")
)
"""The signals with which a scheduler warns a process beforehand; they end it if its own handler raises."""

SIGNAL_EXIT_CODES: Mapping[int, str] = MappingProxyType({128 + number: end for number, end in END_SIGNALS.items()})
"""Exit codes with which a program reports that one of them ended it: 128 plus the signal's number, as in a shell."""

END_REASONS = ("finished", "died", *FAILURE_REASONS)
"""How a rank's process ended: as it should, without a word, or with a failure for one of these reasons."""

FAILURE_CATEGORIES = (
    "out_of_memory", "network", "numerical", "hardware", "data", "storage", "software", "preemption", "configuration",
)  # fmt: skip
"""Where the cause of a failure lies, as the table of signatures classifies its message (docs/logs.md)."""

CATEGORY_OF_REASON: Mapping[str, str] = MappingProxyType(
    {
        "oom": "out_of_memory",
        "nonfinite": "numerical",
        "collective": "network",
        "data": "data",
        "terminated": "preemption",
        "interrupted": "preemption",
        EXIT_CODE: "software",
        "exception": "software",
    }
)
"""The category of a failure if only its reason is known."""

MISUSES = (
    "unknown_name", "wrong_type", "unknown_phase", "unknown_tier", "unknown_threshold", "no_steps", "too_late",
)  # fmt: skip
"""Wrong uses of the client. `unknown_name`: of a logged value, an argument, a tag or an operation; `wrong_type`: a
value of the wrong type for its name; `no_steps`: batches are drawn but no step completes; `too_late`: something that
must be set before the process group exists."""

ROWS = Rows()
_row = ROWS.add

RANK_INFO = _row(
    "rank_info", INFO, "",
    (*RANK, "local_rank", "world_size", "attempt", "gpu", "uuid", "owner"),
    "A rank, its place, and the uid of its process; an empty label means unknown.",
    few=True,
)  # fmt: skip
RANK_COORDINATES = _row(
    "rank_coordinates_info", INFO, "", (*RANK, *DIMENSIONS, "coordinates"),
    "Where a rank is in the run's parallelism; coordinates: all of them as texts write them, if there are several.",
    few=True,
)  # fmt: skip
RANK_JOB_INFO = _row(
    "rank_job_info", INFO, "", (*RANK, "scheduler", "job_id", "namespace", "pod"),
    "The batch job of a rank under Slurm or Kubernetes.",
    detail=True,
)  # fmt: skip
RANK_UP = _row(
    "rank_up",
    GAUGE,
    "",
    RANK,
    "1 while the rank is connected or has finished, 0 once it has died or failed.",
    few=True,
)
RANK_STATE = _row(
    "rank_state", GAUGE, "", (*RANK, "state"),
    "1 for the rank's state; frozen: connected, but silent for 10 s.",
    STATES,
)  # fmt: skip
RANK_HEARTBEAT = _row(
    "rank_heartbeat_timestamp_seconds", GAUGE, "seconds", RANK, "Unix time of the rank's last frame, or of its death.",
    detail=True,
    unread="silence is concluded from it (tachograph_run_frozen_seconds); shown to check a client",
)  # fmt: skip
RANK_START = _row(
    "rank_start_timestamp_seconds", GAUGE, "seconds", RANK,
    "Unix time from which the rank's process accounts for its time; absent once it has ended.",
    detail=True,
    unread="the node concludes when the run's processes started (tachograph_run_started_timestamp_seconds)",
)  # fmt: skip
RANK_ENDED = _row(
    "rank_ended_timestamp_seconds", GAUGE, "seconds", (*RANK, "reason"),
    "Unix time at which the rank ended, and why.",
    vocabulary=END_REASONS,
    few=True,
)  # fmt: skip
RANK_PROGRESS = _row(
    "rank_progress_timestamp_seconds",
    GAUGE,
    "seconds",
    RANK,
    "Unix time of the rank's last completed step.",
    detail=True,
)
RANK_PHASE = _row(
    "rank_phase_seconds", GAUGE, "seconds", (*RANK, "phase"),
    "Seconds for which the rank has been in its current phase.", vocabulary=PHASES,
)  # fmt: skip
RANK_PEAK_FLOPS = _row(
    "rank_peak_flops", GAUGE, "", RANK,
    "Dense peak FLOP/s of the rank's device at its precision.",
    detail=True,
)  # fmt: skip
RANK_ON_GPU = _row(
    "rank_on_gpu", GAUGE, "", (*RANK, *GPU, "name"),
    "1 while a rank on this GPU lives, 0 once it has ended.",
    few=True,
)  # fmt: skip
RANK_SHARES_GPU = _row(
    "rank_shares_gpu_info", INFO, "", (*RANK, *GPU),
    "A rank whose GPU is also used by a rank of another user or run.",
    few=True,
)  # fmt: skip
