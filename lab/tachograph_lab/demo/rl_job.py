"""The example of GRPO as a job to break: its samples wait for an engine, and faults are injected while it runs.

    torchrun --nproc-per-node 2 -m tachograph_lab.demo.rl_job --name rl --folder .demo/rl --engine 127.0.0.1:8000

needs TRL. Model, task, trainer and its record are those of `examples/grpo/train.py`.
"""

# ruff: noqa: ANN401 - TRL is not checked, and its objects have no type here

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tachograph.integrations.huggingface import TachographCallback
from tachograph.processes.die_with_parent import die_with_parent
from tachograph_lab.checkout import root
from tachograph_lab.demo import engine, fault_injection

BATCH = 8
ENGINE_SECONDS, LONG = 1.0, 5
"""What the engine takes for a batch of samples, and how many times as long as usual a rank with the fault `slow`
generates."""
TOKENS = 16
"""Of a sample."""


def example() -> Any:
    """Import the example, which is no module of a package."""
    found = importlib.util.spec_from_file_location("grpo_train", root() / "examples/grpo/train.py")
    assert found is not None and found.loader is not None  # noqa: PT018 - it is a file of this checkout
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def train(options: argparse.Namespace) -> None:
    """Train until the control file says stop, with the faults that it lists."""
    grpo, rank = example(), int(os.environ["RANK"])
    faults = fault_injection.RankFaults(options.folder / "control.json", rank)
    (options.folder / f"rank{rank}.pid").write_text(str(os.getpid()), encoding="utf-8")

    class Trainer(grpo.GRPOTrainer):  # type: ignore[misc, name-defined]
        usual_seconds = ENGINE_SECONDS

        def _generate(self, prompts: Any) -> Any:
            began, slow = time.monotonic(), faults.polled(fault_injection.SLOW) is not None
            more = (LONG - 1) * self.usual_seconds if slow else 0.0
            engine.generate(options.engine, ENGINE_SECONDS + more, len(prompts) * TOKENS)
            samples = super()._generate(prompts)
            if not slow:
                self.usual_seconds = time.monotonic() - began
            return samples

        def training_step(self, *arguments: Any, **named: Any) -> Any:
            loss = super().training_step(*arguments, **named)
            stop = torch.tensor(int(faults.polled(fault_injection.STOP) is not None))
            dist.broadcast(stop, 0)  # all ranks end with the same step
            self.control.should_training_stop |= bool(stop)
            return loss

    def reward(*arguments: Any, **named: Any) -> list[float]:
        while faults.polled(fault_injection.HANG):
            time.sleep(fault_injection.HANG_POLL_SECONDS)
        rewards: list[float] = grpo.repeats(*arguments, **named)
        return rewards

    grpo.GRPOTrainer = Trainer
    trainer = grpo.trainer(str(options.folder / "saved"), options.steps, reward, BATCH)
    TachographCallback(run=options.name).attach(trainer)
    trainer.train()
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Parse the command line and train."""
    die_with_parent()  # torchrun, when killed, leaves its ranks running
    parser = argparse.ArgumentParser(description="The example of GRPO, watched by Tachograph")
    parser.add_argument("--name", default="rl", help="the run's name (torchrun takes --run for one of its own)")
    parser.add_argument("--folder", type=Path, required=True, help="where control file and pids live")
    parser.add_argument("--engine", required=True, help="host:port of the engine")
    parser.add_argument("--steps", type=int, default=1_000_000, help="end after so many steps")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
