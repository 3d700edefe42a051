"""The pages of a simulated fleet: a real exporter's page as the pattern, with the values of a run in progress.

A page is generated once per node, with a slot of fixed width for every value that changes; serving it fills the slots.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rules_conclusions import STEP_SECONDS, Line

RANKS_PER_NODE = 8
RUN = "llama-405b"
WIDTH = 18
"""The characters of a slot: fourteen digits, a point and three more. Larger values have an exponent after the slot."""

DIGITS = 10 ** np.arange(WIDTH - 2, -1, -1, dtype=np.int64)
SLOT = b"0" * WIDTH

TIMESTAMP = re.compile(r"tachograph_(rank|run)_\w+_timestamp_seconds|tachograph_exporter_time_seconds")
CONCLUDED = re.compile(r"(# (HELP|TYPE) )?tachograph_run_")
"""What `rules_conclusions` shows instead of the pattern."""


@dataclass(frozen=True)
class Moving:
    """How the value of a sample changes: with completed steps, with time, or both; noise is a share per rank."""

    per_step: float = 0.0
    per_second: float = 0.0
    offset: float = 0.0
    exponent: int = 0
    noise: float = 0.0


def moving_rows() -> Iterator[tuple[str, Moving]]:
    """Yield the samples of a page that change: a pattern for name and labels, and how they change."""
    yield r"tachograph_rank_heartbeat_timestamp_seconds\{", Moving(per_second=1)
    yield r"tachograph_rank_progress_timestamp_seconds\{", Moving(per_step=STEP_SECONDS)
    yield r"tachograph_rank_start_timestamp_seconds\{", Moving()
    yield r"tachograph_train_(step|steps_total|batches_total)\{", Moving(per_step=1)
    yield r"tachograph_train_collective_seconds_total\{", Moving(per_step=0.6, noise=0.03)
    yield r"tachograph_train_collective_bus_bytes_total\{", Moving(per_step=140.0, exponent=9)
    yield r"tachograph_train_collective_enqueued\{", Moving(per_step=4)
    yield r"tachograph_train_tokens_total\{", Moving(per_step=16384)
    yield r"tachograph_train_flops_total\{", Moving(per_step=800.0, exponent=12)
    yield r"tachograph_train_loss\{", Moving(per_step=-1e-4, offset=2.5, noise=0.01)
    yield r"tachograph_train_grad_norm\{", Moving(per_step=1e-4, offset=0.9, noise=0.01)
    yield r'tachograph_train_step_seconds_bucket\{.*le="(2\.8|[4-9]|[136]|4[0-9]|9|12|22|\+)', Moving(per_step=8)
    yield r"tachograph_train_step_seconds_sum\{", Moving(per_step=8 * STEP_SECONDS)
    yield r"tachograph_train_step_seconds_count\{", Moving(per_step=8)
    yield r'tachograph_train_phase_excess_seconds_total\{.*phase="(forward|backward|data)"', Moving(per_step=0.01)
    yield r"tachograph_train_productive_seconds_total\{", Moving(per_step=8 * STEP_SECONDS * 0.8)
    yield r'tachograph_train_lost_seconds_total\{.*cause="(data|collective)"', Moving(per_step=8 * 0.1)
    yield r"tachograph_gpu_energy_joules_total\{", Moving(per_second=600, noise=0.02)
    yield r"tachograph_gpu_(sm|sm_active|tensor_active)_cycles_total\{", Moving(per_second=120, exponent=9)
    yield r"tachograph_gpu_nvlink_bytes_total\{", Moving(per_second=200, exponent=9)
    yield r'tachograph_gpu_clock_event_seconds_total\{.*reason="sw_power_cap"', Moving(per_second=0.05)
    yield r"tachograph_gpu_(power_watts|utilization_ratio)\{", Moving(per_second=1e-4, offset=0.9)
    yield r"tachograph_exporter_frames_total ", Moving(per_second=8)
    yield r"tachograph_exporter_time_seconds ", Moving(per_second=1)
    yield r"node_infiniband_port_data_(received|transmitted)_bytes_total\{", Moving(per_second=20, exponent=9)
    yield r"node_network_(receive|transmit)_(bytes|packets)_total\{", Moving(per_second=1e4)
    yield r"node_pressure_\w+_seconds_total", Moving(per_second=0.01)
    yield r"node_memory_(MemFree|MemAvailable|Active|Cached)_bytes", Moving(per_second=4096, offset=1e12)


ROWS = [(re.compile(pattern), moving) for pattern, moving in moving_rows()]


def plan(lines: Iterable[str]) -> list[Moving | None]:
    """Return for each line of a page how it changes, None if it does not; this is the same on all nodes."""
    return [
        None if line.startswith("#") else next((row for rule, row in ROWS if rule.match(line)), None) for line in lines
    ]


class Page:
    """One page of one node; `render` returns it at a moment. `plan` has for each line how it changes."""

    def __init__(self, lines: Sequence[str], plan: Sequence[Moving | None], noise: np.random.Generator) -> None:
        text = bytearray()
        starts = []
        rows = [row for row in plan if row]
        self.samples: list[str] = []
        for line, row in zip(lines, plan, strict=True):
            if row is None:
                text += f"{line}\n".encode()
                continue
            sample = line.rpartition(" ")[0]
            text += f"{sample} ".encode()
            starts.append(len(text))
            text += SLOT + (f"e{row.exponent}\n" if row.exponent else "\n").encode()
            self.samples.append(sample)
        self._text = np.frombuffer(text, dtype=np.uint8)
        slots = np.array(starts, dtype=np.int64)[:, None] + np.arange(WIDTH)
        self._text[slots[:, WIDTH - 4]] = ord(".")
        self._slots = np.delete(slots, WIDTH - 4, axis=1)
        figures = np.array([(row.offset, row.per_step, row.per_second) for row in rows], dtype=np.float64)
        self._base, self._per_step, self._per_second = figures.T.copy()
        scale = 1 + np.array([row.noise for row in rows]) * noise.standard_normal(len(rows))
        self._per_step *= scale
        self._per_second *= scale

    def start(self, epoch: float) -> None:
        """Start the run, or the state that the page is of, at this Unix time: its timestamps count from there."""
        self._base += [epoch if TIMESTAMP.match(sample) else 0.0 for sample in self.samples]

    def render(self, steps: float, seconds: float) -> bytes:
        """Return the page after this many completed steps and seconds."""
        values: NDArray[np.float64] = self._base + self._per_step * steps + self._per_second * seconds
        whole = np.rint(values * 1000).astype(np.int64)
        self._text[self._slots] = (whole[:, None] // DIGITS) % 10 + ord("0")
        return self._text.tobytes()


def exporter_lines(pattern: str, node: int) -> Iterator[str]:
    """Yield the lines of a node's exporter, from the page of a real one with 8 GPUs and 8 ranks of run `bench`."""
    text = re.sub(r'run="[^"]*"', f'run="{RUN}"', pattern)
    text = re.sub(r"(GPU-\w{4})\w{4}-", rf"\g<1>{node:04x}-", text)
    text = re.sub(r'([{,])rank="(\d+)"', lambda m: f'{m[1]}rank="{node * RANKS_PER_NODE + int(m[2])}"', text)
    text = re.sub(r'precision="",global_batch=""', 'precision="bf16",global_batch="2048"', text)
    yield "tachograph_node_unused_ports 0"
    for line in text.splitlines():
        if not CONCLUDED.match(line):
            yield line
        if gpu := re.match(r"tachograph_gpu_up(\{.*)\}", line):
            yield f'tachograph_gpu_slowdown_ratio{gpu[1]},cause="power_cap"}} 0.05'


def gpu_uuids(lines: Iterable[str]) -> dict[str, str]:
    """Return the UUIDs of a page's GPUs by their index."""
    found = (re.match(r'tachograph_gpu_up\{gpu="(\d+)",uuid="([^"]+)"', line) for line in lines)
    return {one[1]: one[2] for one in found if one}


def concluded(
    lines: Sequence[Line], uuids: Mapping[str, str], node: int, ranks: int
) -> tuple[list[str], list[Moving | None]]:
    """Return what a node concludes, with its ranks and GPUs and the run's size, and how each line changes."""
    texts: list[str] = []
    plan: list[Moving | None] = []
    for line in lines:
        sample = re.sub(r'run="[^"]*"', f'run="{RUN}"', line.sample)
        sample = re.sub(r'gpu="(\d+)",uuid="[^"]+"', lambda m: f'gpu="{m[1]}",uuid="{uuids[m[1]]}"', sample)
        sample = re.sub(
            r'rank="(\d+)"', lambda m: f'rank="{node * RANKS_PER_NODE + int(m[1]) % RANKS_PER_NODE}"', sample
        )
        value = ranks if sample.startswith("tachograph_run_world_size") else line.value
        moves = line.per_second or TIMESTAMP.match(sample)
        texts.append(f"{sample} {value!r}")
        plan.append(Moving(offset=value, per_second=line.per_second) if moves else None)
    return texts, plan


INFINIBAND = (
    "port_data_received_bytes_total", "port_data_transmitted_bytes_total", "np_cnp_packets_sent_total",
    "local_ack_timeout_errors_total", "symbol_error_total", "port_errors_received_total", "link_downed_total",
    "link_error_recovery_total", "local_link_integrity_errors_total", "rx_icrc_encapsulated_errors_total",
)  # fmt: skip


def node_lines(pattern: str) -> Iterator[str]:
    """Yield the lines of a node's node_exporter: the page of a real one, and eight InfiniBand ports."""
    yield from (line for line in pattern.splitlines() if not line.startswith("node_infiniband"))
    for device in (f"mlx5_{number}" for number in range(8)):
        port = f'{{device="{device}",port="1"}}'
        yield f'node_infiniband_info{{board_id="MT_0000000838",device="{device}",firmware_version="28.39.1002"}} 1'
        yield f"node_infiniband_state_id{port} 4"
        yield f"node_infiniband_physical_state_id{port} 5"
        yield f"node_infiniband_rate_bytes_per_second{port} 5e+10"
        yield from (f"node_infiniband_{name}{port} 0" for name in INFINIBAND)
