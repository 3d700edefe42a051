"""What `tachograph run` adds to a step: the main thread's CPU in a plain loop, Hugging Face's Trainer and Lightning's.

One process trains throughout, in blocks of steps that are recorded and not recorded in turns, so that a machine that
gets slower or busier does so for both. What is compared is the thread's own CPU time of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client import exporter
from tachograph_lab.table import quantile, save, show

BUDGET_MICROSECONDS = 50.0
STEP_SECONDS = 0.005
BLOCK, LEFT_OUT = 20, 2
"""Steps of a block, and those at its beginning that are not compared."""

WIDTH = 128


class Turns:
    """Switches recording on and off by blocks of steps, and keeps the CPU seconds of each step."""

    def __init__(self, recording: Any) -> None:
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self._recording = recording
        self._steps = 0
        self._before = time.thread_time()

    def step(self) -> None:
        """Note the end of a step."""
        now = time.thread_time()
        self._steps += 1
        if self._steps % BLOCK > LEFT_OUT:
            self.seconds[self._recording.active].append(now - self._before)
        if self._steps % BLOCK == 0:
            self._recording.active = not self._recording.active
        self._before = time.thread_time()


def network(torch: Any) -> Any:
    """Return a plain network of square layers."""
    torch.manual_seed(0)
    blocks = [block for _ in range(6) for block in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(WIDTH, 1))


def rows_for(torch: Any) -> int:
    """Return how many rows of a batch make a step of about 5 ms."""
    model, rows = network(torch), 16
    while True:
        began = time.thread_time()
        for _ in range(5):
            model(torch.ones(rows, WIDTH)).square().mean().backward()
        if (time.thread_time() - began) / 5 > 0.85 * STEP_SECONDS or rows > 2**14:
            return rows
        rows += max(rows // 4, 1)


def plain(torch: Any, rows: int, steps: int, turns: Turns) -> None:
    """Train in a loop by hand."""
    model = network(torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for (batch,) in torch.utils.data.DataLoader(Repeated(torch, rows * steps), batch_size=rows):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        turns.step()


def lightning(torch: Any, rows: int, steps: int, turns: Turns) -> None:
    """Train with Lightning."""
    import lightning as framework

    class Module(framework.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.network = network(torch)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.network(batch[0]).square().mean()

        def on_train_batch_end(self, *_: Any) -> None:
            turns.step()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = framework.Trainer(max_steps=steps, accelerator="cpu", devices=1, **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(Repeated(torch, rows * steps), batch_size=rows))


def huggingface(torch: Any, rows: int, steps: int, turns: Turns) -> None:
    """Train with Hugging Face's Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.network = network(torch)

        def forward(self, inputs: Any) -> Any:
            return {"loss": self.network(inputs).square().mean()}

    class Counting(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.step()

    arguments = TrainingArguments(
        "trainer", per_device_train_batch_size=rows, max_steps=steps, use_cpu=True, report_to=[], save_strategy="no",
        disable_tqdm=True, logging_strategy="no", remove_unused_columns=False,
    )  # fmt: skip
    data = Repeated(torch, rows * steps, named=True)
    Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Counting()]).train()


class Repeated:
    """A dataset of one sample."""

    def __init__(self, torch: Any, size: int, *, named: bool = False) -> None:
        sample = torch.ones(WIDTH)
        self._sample: Any = {"inputs": sample} if named else (sample,)
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._sample


KINDS: dict[str, Callable[[Any, int, int, Turns], None]] = {
    "plain loop": plain, "Hugging Face": huggingface, "Lightning": lightning,
}  # fmt: skip


def job(kind: str, steps: int) -> None:
    """Train in this process, and print the seconds of the steps that were recorded and of those that were not."""
    import torch

    from tachograph.attach.observer import Observer
    from tachograph.attach.script_recording import ScriptRecording
    from tachograph.attach.summary import Summary
    from tachograph.attach.torch_hooks import attach
    from tachograph.client.recorder import Recorder

    torch.set_num_threads(1)
    rows = rows_for(torch)
    recording = ScriptRecording(lambda: Recorder(run="cost"), Summary())
    attach(torch, Observer(recording))
    turns = Turns(recording)
    KINDS[kind](torch, rows, steps, turns)
    print(json.dumps([turns.seconds[True], turns.seconds[False]]))


def cost(kind: str, steps: int) -> dict[str, Any]:
    """Return what recording adds to a step of one kind, in microseconds of the main thread's CPU."""
    with tempfile.TemporaryDirectory() as folder, exporter(Path(folder) / "rank.sock", state="alive"):
        environment = {**os.environ, "TACHOGRAPH_SOCKET": str(Path(folder) / "rank.sock"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--job", kind, "--steps", str(steps)]
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=900, check=True
        )
    recorded, alone = json.loads(done.stdout.splitlines()[-1])
    return {
        "steps of": kind, "compared": len(recorded), "ms of CPU": 1e3 * statistics.median(alone),
        "added p25 µs": 1e6 * (quantile(recorded, 0.25) - quantile(alone, 0.25)),
        "p50 µs": 1e6 * (statistics.median(recorded) - statistics.median(alone)),
    }  # fmt: skip


def main() -> None:
    """Print the table and write bench/out/run_cost.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    if options.job is not None:
        job(options.job, options.steps)
        return
    rows = [cost(kind, options.steps) for kind in KINDS]
    show(
        "tachograph run: what it adds to a step, CPU of the main thread", rows, f"budget: <= {BUDGET_MICROSECONDS:g} µs"
    )
    save("run_cost", {row["steps of"]: row for row in rows})


if __name__ == "__main__":
    main()
