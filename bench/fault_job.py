"""The job of the fault bench: real ranks, real parallelism over gloo, a real recorder, simulated computing.

A CPU that drives a GPU mostly waits for it, and so do these ranks: they train a tiny real model and sleep for the time
that a GPU would take in each phase, with noise. So several jobs of four ranks can share two cores.

`python bench/fault_job.py FOLDER` reads FOLDER/scenario.json and writes there when the fault began. Torch is imported
once; the ranks are forked from that process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import tachograph
from fault_scenarios import CULPRIT, RANKS, STEP_SECONDS, Scenario
from tachograph.die_with_parent import die_with_parent
from tachograph_lab.demo import fault_injection

SHARES = {"data": 0.05, "copy": 0.05, "forward": 0.3, "backward": 0.45, "optimizer": 0.1, "other": 0.05}
"""The phases of a healthy step as shares of it."""

NOISE = 0.03
"""The standard deviation of a step's duration on one rank."""

CLASSES, WIDTH, BATCH, MICRO_BATCHES = 16, 32, 64, 4
CHECKPOINT_EVERY_SECONDS, CHECKPOINT_SECONDS = 30.0, 0.4
EVAL_AT_SECONDS, EVAL_SECONDS = (15.0, 75.0), 2.5
SPIKE_STEPS = 2
INVARIANT_EVERY, CHECKSUM_EVERY = 20, 20
LEAK_BYTES_PER_SECOND = 1 << 20
DIVERGENCE_PER_MINUTE = 0.02


class Model(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Two layers; the time that its backward pass would take is slept when the gradient of the hidden layer is there.

    That is before the last bucket of gradients is ready, as a GPU's kernels would be. One stage of a pipeline is such
    a model, too, whose forward is slept in it.
    """

    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, outputs)
        self.forward_seconds = self.backward_seconds = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (batch, classes), or what the next stage takes."""
        time.sleep(self.forward_seconds)
        hidden: Tensor = torch.tanh(self.first(inputs))
        if hidden.requires_grad:
            fault_injection.slow_backward(hidden, self.backward_seconds)
        outputs: Tensor = self.second(hidden)
        return outputs


def parallel(model: Model, parallelism: str) -> nn.Module:
    """Return the model as it is trained by several ranks."""
    if parallelism == "fsdp2":
        for part in (model.first, model.second):
            fully_shard(part)
        return fully_shard(model)
    if parallelism == "tensor":
        mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
        return parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    return model if parallelism == "pipeline" else DistributedDataParallel(model)


class Pipeline:
    """The 1F1B schedule of one stage."""

    def __init__(self, model: Model, rank: int) -> None:
        stage = PipelineStage(model, rank, RANKS, torch.device("cpu"))
        self._schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=functional.cross_entropy)
        self._rank = rank

    def train(self, inputs: Tensor, labels: Tensor) -> Tensor | None:
        """Run forward and backward of all micro-batches; return the loss on the last stage."""
        losses: list[Tensor] = []
        if self._rank == 0:
            self._schedule.step(inputs)
        elif self._rank == RANKS - 1:
            self._schedule.step(target=labels, losses=losses)
        else:
            self._schedule.step()
        return torch.stack([loss.detach() for loss in losses]).mean() if losses else None


class Rank:
    """One rank of a job."""

    def __init__(self, scenario: Scenario, rank: int, folder: Path) -> None:
        self.scenario, self.rank, self.folder = scenario, rank, folder
        self.random = Random(f"{scenario.run} {rank}")
        self.step = 0
        self.late = 0.0
        self.kept: list[bytearray] = []
        self.batches = 0
        teacher = torch.Generator().manual_seed(0)
        self.truth = torch.randn(WIDTH, CLASSES, generator=teacher)
        same_batches = scenario.parallelism in ("tensor", "pipeline")
        self.generator = torch.Generator().manual_seed(0 if same_batches else rank)

    @property
    def faulty(self) -> bool:
        """Whether the fault has begun."""
        return self.step >= self.scenario.steps_before

    @property
    def culprit(self) -> bool:
        """Whether this rank has the fault in this step."""
        turn = self.step % RANKS if self.scenario.rotating else CULPRIT
        return self.faulty and self.rank == turn

    def has(self, kind: str) -> bool:
        """Return whether this rank has this fault now."""
        return self.scenario.kind == kind and self.culprit

    def spend(self, phase: str, place: str) -> None:
        """Sleep for this part of the step, and for the delay if it belongs here."""
        time.sleep(self.seconds(phase, place))

    def seconds(self, phase: str, place: str) -> float:
        """Return how long this part of the step takes."""
        delay = self.scenario.share * STEP_SECONDS if self.scenario.place == place and self.has("delay") else 0.0
        return float(SHARES[phase] * STEP_SECONDS * self.pace + delay)

    def batches_of(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs (batch, width) and labels (batch), each after the time that loading takes."""
        for step in range(self.scenario.steps):
            self.step = step
            self.note_onset()
            self.pace = max(0.7, self.random.gauss(1.0, NOISE))
            self.spend("data", "loader")
            inputs = torch.randn(BATCH, WIDTH, generator=self.generator)
            noise = torch.randn(BATCH, CLASSES, generator=self.generator)
            yield inputs, (inputs @ self.truth + 2 * noise).argmax(1)

    def note_onset(self) -> None:
        """Record when the fault begins."""
        if self.step == self.scenario.steps_before and self.rank == CULPRIT:
            fresh = self.folder / "onset.new"
            fresh.write_text(str(time.time()), encoding="utf-8")
            fresh.replace(self.folder / "onset")

    def train(self) -> None:
        """Train through the scenario, then finish the run."""
        scenario, rank = self.scenario, self.rank
        torch.manual_seed(0)
        in_stages = scenario.parallelism == "pipeline"
        model = Model(WIDTH if in_stages and rank < RANKS - 1 else CLASSES)
        trained = parallel(model, scenario.parallelism)
        pipeline = Pipeline(model, rank) if in_stages else None
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
        recorder = tachograph.Recorder(
            run=scenario.run, rank=rank, local_rank=rank, world_size=RANKS, attempt=0, samples_per_step=BATCH * RANKS,
            mesh={"pp": rank} if in_stages else None,
        )  # fmt: skip
        recorder.watch(trained, optimizer, checksum_every=CHECKSUM_EVERY)
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
        metric = torch.zeros(1)
        for inputs, labels in recorder.data(self.batches_of()):
            with recorder.step() as step:
                with recorder.phase("copy"):
                    self.spend("copy", "copy")
                if pipeline is not None:
                    model.forward_seconds = self.seconds("forward", "forward") / MICRO_BATCHES
                    model.backward_seconds = self.seconds("backward", "backward") / MICRO_BATCHES
                    with recorder.phase("backward"):
                        loss = pipeline.train(inputs, labels)
                else:
                    with recorder.phase("forward"):
                        self.spend("forward", "forward")
                        model.backward_seconds = self.seconds("backward", "backward")
                        loss = functional.cross_entropy(trained(inputs), self.labels(labels))
                        if self.has("nan"):
                            loss = loss * torch.nan
                    self.spend("other", "before collective")
                    with recorder.phase("backward"):
                        loss.backward()
                with recorder.phase("optimizer"):
                    self.spend("optimizer", "optimizer")
                    optimizer.step()
                    optimizer.zero_grad()
                known = {} if loss is None else {"loss": loss}
                step.log(**known, learning_rate=0.05)
            self.harm(model)
            if scenario.kind == "skipped":
                if self.has("skipped"):
                    store.wait(["saved"], timedelta(minutes=5))  # by those who wait for this rank
                with recorder.collective("all_reduce", bytes=4):
                    dist.all_reduce(metric)
            self.batches += 0 if scenario.kind == "drift" and self.culprit and self.step % 10 == 0 else 1
            if self.step % INVARIANT_EVERY == 0:
                recorder.invariant("batches_read", self.batches, self.step)
            self.pause(recorder, model)
        recorder.close()

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

    def pause(self, recorder: tachograph.Recorder, model: Model) -> None:
        """Save a checkpoint on rank 0, or evaluate on all ranks, when it is due."""
        every = round(CHECKPOINT_EVERY_SECONDS / STEP_SECONDS)
        if self.rank == 0 and self.step % every == every // 3:
            path = self.folder / "checkpoint.pt"
            with recorder.phase("checkpoint"):
                torch.save(model.state_dict(), path)
                time.sleep(CHECKPOINT_SECONDS)
            recorder.checkpoint_saved(step=self.step, bytes=path.stat().st_size)
        evals = EVAL_AT_SECONDS if self.scenario.kind == "healthy" else EVAL_AT_SECONDS[:1]
        if self.step in [round(seconds / STEP_SECONDS) for seconds in evals]:
            with recorder.phase("eval"):
                time.sleep(EVAL_SECONDS)


def run_rank(scenario: Scenario, rank: int, folder: Path, parent: int) -> None:
    """Run one rank of the job, in a process of its own."""
    die_with_parent(parent=parent)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=timedelta(minutes=10))
    Rank(scenario, rank, folder).train()
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks and wait for them to end."""
    folder = Path(sys.argv[1])
    given = json.loads((folder / "scenario.json").read_text(encoding="utf-8"))
    scenario = Scenario(**{**given, "expected": None})
    torch.set_num_threads(1)
    parent, ranks = os.getpid(), {}
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run_rank(scenario, rank, folder, parent)
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
