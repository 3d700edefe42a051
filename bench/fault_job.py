"""The job of the fault bench: real ranks, real parallelism over gloo, a real recorder, simulated computing.

A CPU that drives a GPU mostly waits for it, and so do these ranks: they train a tiny real model and sleep for the time
that a GPU would take in each phase, with noise. So several jobs of four ranks can share two cores.

`python bench/fault_job.py FOLDER` reads FOLDER/scenario.json and writes there when the fault began. Torch is imported
once; the ranks are forked from that process, but those of an unedited script, which torchrun starts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import tachograph
from fault_models import CLASSES, WIDTH, Model, SleepingSGD, build, forwards, replica
from fault_scenarios import CULPRIT, MARKED, RANKS_PER_NODE, STEP_SECONDS, UNEDITED, Scenario
from tachograph import wire
from tachograph.processes.die_with_parent import die_with_parent
from tachograph_lab.demo import fault_injection

SHARES = {"data": 0.05, "copy": 0.05, "forward": 0.3, "backward": 0.45, "optimizer": 0.1, "other": 0.05}
"""The phases of a healthy step as shares of it."""

NOISE = 0.03
"""The standard deviation of a step's duration on one rank."""

BATCH = 64
HEALTHY_STEPS = 100
CHECKPOINT_EVERY_SECONDS, CHECKPOINT_SECONDS = 30.0, 0.4
EVAL_AT_SECONDS, EVAL_SECONDS = (15.0, 75.0), 2.5
SPIKE_STEPS = 2
INVARIANT_EVERY, CHECKSUM_EVERY = 20, 20
LEAK_BYTES_PER_SECOND = 1 << 20
DIVERGENCE_PER_MINUTE = 0.02


class Rank:
    """One rank of a job."""

    def __init__(self, scenario: Scenario, rank: int, folder: Path) -> None:
        self.scenario, self.rank, self.folder = scenario, rank, folder
        self.random = Random(f"{scenario.run} {rank}")
        self.step = 0
        self.began: deque[float] = deque(maxlen=HEALTHY_STEPS)
        self.usual_step = STEP_SECONDS
        self.kept: list[bytearray] = []
        self.batches = 0
        teacher = torch.Generator().manual_seed(0)
        self.truth = torch.randn(WIDTH, CLASSES, generator=teacher)
        self.generator = torch.Generator().manual_seed(replica(scenario.parallelism, rank, scenario.ranks))
        self.node = rank // RANKS_PER_NODE if scenario.nodes > 1 else 0

    @property
    def faulty(self) -> bool:
        """Whether the fault has begun."""
        return self.step >= self.scenario.steps_before

    @property
    def culprit(self) -> bool:
        """Whether this rank has the fault in this step."""
        if self.scenario.nodes > 1:
            return self.faulty and self.node == CULPRIT
        turn = self.step % self.scenario.ranks if self.scenario.rotating else CULPRIT
        return self.faulty and self.rank == turn

    def has(self, kind: str) -> bool:
        """Return whether this rank has this fault now."""
        return self.scenario.kind == kind and self.culprit

    def spend(self, phase: str, place: str) -> None:
        """Sleep for this part of the step, and for the delay if it belongs here."""
        time.sleep(self.seconds(phase, place))

    def seconds(self, phase: str, place: str) -> float:
        """Return how long this part of the step takes."""
        delay = self.scenario.share * self.usual_step if self.scenario.place == place and self.has("delay") else 0.0
        return float(SHARES[phase] * STEP_SECONDS * self.pace + delay)

    def batches_of(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs (batch, width) and labels (batch), each after the time that loading takes."""
        for step in range(self.scenario.steps):
            self.step = step
            self.time_step()
            self.note_onset()
            if self.has("left"):
                return  # its share of the data has ended before the others'
            if self.has("loader"):
                self.wait_for_ever()
            self.pace = max(0.7, self.random.gauss(1.0, NOISE))
            self.spend("data", "loader")
            inputs = torch.randn(BATCH, WIDTH, generator=self.generator)
            noise = torch.randn(BATCH, CLASSES, generator=self.generator)
            yield inputs, (inputs @ self.truth + 2 * noise).argmax(1)

    def time_step(self) -> None:
        """Take the median of the last healthy steps for the length of a healthy one."""
        if not self.faulty:
            self.began.append(time.monotonic())
            if len(self.began) > 1:
                self.usual_step = median(after - before for before, after in pairwise(self.began))

    def note_onset(self) -> None:
        """Record when the fault begins."""
        if self.step == self.scenario.steps_before and self.rank == CULPRIT:
            fresh = self.folder / "onset.new"
            fresh.write_text(str(time.time()), encoding="utf-8")
            fresh.replace(self.folder / "onset")

    def train(self) -> None:
        """Train through the scenario, then finish the run."""
        scenario = self.scenario
        self.model, self.trained, self.train_batch = build(scenario.parallelism, self.rank)
        self.optimizer = SleepingSGD(self.trained.parameters(), lr=0.05)
        self.store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
        self.groups = [dist.new_group() for _ in range(2)] if scenario.kind in ("omitted", "order") else []
        (self.unedited_loop if scenario.loop == UNEDITED else self.recorded_loop)()
        if self.has("left"):
            self.wait_for_ever()

    def unedited_loop(self) -> None:
        """Train as a script does that has never heard of a recorder."""
        for inputs, labels in DataLoader(Batches(self), batch_size=None):
            self.slow_down()
            self.unmarked_batch(inputs, labels)
            self.harm(self.model)
            self.pause(None)

    def recorded_loop(self) -> None:
        """Train with a recorder, with every phase marked or with the steps and the loader only."""
        scenario = self.scenario
        marked = scenario.loop == MARKED
        if scenario.nodes > 1:
            socket = Path(os.environ[wire.SOCKET_ENVIRONMENT])
            os.environ[wire.SOCKET_ENVIRONMENT] = str(socket.with_name(f"{self.node}.sock"))
        recorder = tachograph.Recorder(
            run=scenario.run, rank=self.rank, local_rank=self.rank - self.node * RANKS_PER_NODE,
            world_size=scenario.ranks, attempt=0, samples_per_step=BATCH * scenario.ranks,
        )  # fmt: skip
        recorder.watch(self.trained, self.optimizer, checksum_every=CHECKSUM_EVERY if marked else 0)
        for inputs, labels in recorder.data(self.batches_of()):
            self.slow_down()
            (self.marked_step if marked else self.basic_step)(recorder, inputs, labels)
            self.harm(self.model)
            self.pause(recorder if marked else None)
        recorder.close()

    def slow_down(self) -> None:
        """Have the model and the optimizer take as long as they would in this step."""
        times = forwards(self.scenario.parallelism, self.scenario.ranks)
        self.model.forward_seconds = self.seconds("forward", "forward") / times
        self.model.backward_seconds = self.seconds("backward", "backward") / times
        self.optimizer.seconds = self.seconds("optimizer", "optimizer")

    def basic_step(self, recorder: tachograph.Recorder, inputs: Tensor, labels: Tensor) -> None:
        """Train one batch in a loop that marks its steps and its loader, and nothing else."""
        with recorder.step() as step:
            loss = self.unmarked_batch(inputs, labels)
            if loss is not None:
                step.log(loss=loss)

    def unmarked_batch(self, inputs: Tensor, labels: Tensor) -> Tensor | None:
        """Train one batch and return its loss where this rank has it."""
        self.spend("copy", "copy")
        loss = self.train_batch(inputs, labels)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for group in self.groups[::-1] if self.has("order") else self.groups:
            if not self.has("omitted"):
                dist.all_reduce(torch.zeros(1), group=group)
        return loss

    def marked_step(self, recorder: tachograph.Recorder, inputs: Tensor, labels: Tensor) -> None:
        """Train one batch in a loop that marks every phase, and checks invariants."""
        with recorder.step() as step:
            with recorder.phase("copy"):
                self.spend("copy", "copy")
            with recorder.phase("forward"):
                loss = functional.cross_entropy(self.trained(inputs), self.labels(labels))
                if self.has("nan"):
                    loss = loss * torch.nan
            self.spend("other", "before collective")
            with recorder.phase("backward"):
                loss.backward()
            with recorder.phase("optimizer"):
                self.optimizer.step()
                self.optimizer.zero_grad()
            step.log(loss=loss, learning_rate=0.05)
        for group in self.groups[:1]:
            if not self.has("omitted"):
                with recorder.collective("all_reduce", bytes=4):
                    dist.all_reduce(torch.zeros(1), group=group)
        self.batches += 0 if self.has("drift") and self.step % 10 == 0 else 1
        if self.step % INVARIANT_EVERY == 0:
            recorder.invariant("batches_read", self.batches, self.step)

    def wait_for_ever(self) -> None:
        """Wait for what those who wait for this rank would have to do."""
        self.store.wait(["saved"], timedelta(minutes=5))

    def labels(self, labels: Tensor) -> Tensor:
        """Return the labels, or wrong ones during the loss spike."""
        since = self.step - self.scenario.steps_before
        if (self.scenario.kind == "spike" and 0 <= since < SPIKE_STEPS) or (
            self.scenario.kind == "spike-stays" and since >= 0
        ):
            return (labels + 1 + self.step % (CLASSES - 1)) % CLASSES
        return labels

    def harm(self, model: Model) -> None:
        """Apply the scenario's fault to this process or to the model."""
        if self.has("killed"):
            fault_injection.kill(os.getpid())
        if self.has("frozen"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.has("leak"):
            size = int(LEAK_BYTES_PER_SECOND * STEP_SECONDS)
            self.kept.append(bytearray(os.urandom(1) * size))
        if self.has("checksum") and self.step == self.scenario.steps_before:
            with torch.no_grad():  # one bit of one weight, as memory that fails would flip it
                weights = model.first.weight.view(torch.int32)
                weights[0, 0] ^= 1 << 20
        if self.scenario.kind == "divergence" and self.faulty:
            # The labels depend less and less on the inputs: the loss climbs by half of this.
            self.truth *= 1 - DIVERGENCE_PER_MINUTE * STEP_SECONDS / 60

    def pause(self, recorder: tachograph.Recorder | None) -> None:
        """Save a checkpoint on rank 0, or evaluate on all ranks, when it is due; marked where there is a recorder."""
        every = round(CHECKPOINT_EVERY_SECONDS / STEP_SECONDS)
        if self.rank == 0 and self.step % every == every // 3:
            path = self.folder / "checkpoint.pt"
            with recorder.phase("checkpoint") if recorder else nullcontext():
                torch.save([getattr(each, "_local_tensor", each.data) for each in self.model.parameters()], path)
                time.sleep(CHECKPOINT_SECONDS)
            if recorder:
                recorder.checkpoint_saved(step=self.step, bytes=path.stat().st_size)
        evals = EVAL_AT_SECONDS if self.scenario.kind == "healthy" else EVAL_AT_SECONDS[:1]
        if self.step in [round(seconds / STEP_SECONDS) for seconds in evals]:
            with recorder.phase("eval") if recorder else nullcontext():
                self.trained.eval()
                time.sleep(EVAL_SECONDS)
                self.trained.train()


class Batches(IterableDataset):  # type: ignore[misc]
    """A rank's batches for PyTorch's loader."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.rank.batches_of()


def run_rank(scenario: Scenario, rank: int, folder: Path) -> None:
    """Run one rank of the job, in a process of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=scenario.ranks, timeout=timedelta(minutes=10))
    Rank(scenario, rank, folder).train()
    dist.barrier()
    dist.destroy_process_group()


def read(folder: Path) -> Scenario:
    """Return the scenario to play."""
    given = json.loads((folder / "scenario.json").read_text(encoding="utf-8"))
    return Scenario(**{**given, "expected": None})


def main() -> None:
    """Start the ranks and wait for them to end."""
    folder = Path(sys.argv[1])
    scenario = read(folder)
    (launch if scenario.loop == UNEDITED else fork)(scenario, folder)


def launch(scenario: Scenario, folder: Path) -> None:
    """Have torchrun start a script under `tachograph run`; the script is not of this file, which names the recorder."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(scenario.ranks)]
    command += ["--master-addr", os.environ["MASTER_ADDR"], "--master-port", os.environ["MASTER_PORT"]]
    command += ["-m", "tachograph", "run", "--quiet", "--name", scenario.run]
    command += ["--samples-per-step", str(BATCH * scenario.ranks), str(Path(__file__).with_name("unedited_job.py"))]
    sys.exit(subprocess.run([*command, str(folder)], check=False).returncode)


def fork(scenario: Scenario, folder: Path) -> None:
    """Fork the ranks and wait for them to end."""
    parent, ranks = os.getpid(), {}
    for rank in range(scenario.ranks):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent(parent=parent)
                run_rank(scenario, rank, folder)
                status = 0
            except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's code
                sys.excepthook(*sys.exc_info())  # as a script that ends with an exception: the recorder says goodbye
            finally:
                sys.stderr.flush()
                os._exit(status)
        ranks[pid] = rank
        (folder / f"rank{rank}.pid").write_text(str(pid), encoding="utf-8")
    while ranks:
        pid, status = os.wait()
        print(f"rank {ranks.pop(pid)} ended with status {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
