"""The example of GRPO with a stopwatch, and what its trainer logs.

$GENERATES are seconds that generation takes at least, one after another and from the beginning again.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import time
from pathlib import Path
from typing import Any

from doors import open_trainer
from injected import strike
from trainer_truth import Counting, counted
from truth import Truth

EXAMPLE = Path(__file__).parents[3] / "examples/grpo/train.py"
REWARD_SECONDS = 0.2
GENERATES = itertools.cycle(map(float, os.environ.get("GENERATES", "0").split(",")))


def example() -> Any:
    """Import the example."""
    found = importlib.util.spec_from_file_location("grpo_train", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def timed(kind: type[Any], truth: Truth) -> type[Any]:
    """Return the trainer's class with a stopwatch at what it does in a step."""

    class Timed(counted(kind, truth)):  # type: ignore[misc]
        """The same trainer."""

        def training_step(self, *arguments: Any, **named: Any) -> Any:
            """Time a step but for the optimizer, with what it generates."""
            with truth.spending("step"):
                return super().training_step(*arguments, **named)

        def _generate_and_score_completions(self, *arguments: Any, **named: Any) -> Any:
            with truth.spending("samples"):
                time.sleep(next(GENERATES))
                return super()._generate_and_score_completions(*arguments, **named)

        def _calculate_rewards(self, *arguments: Any, **named: Any) -> Any:
            with truth.spending("rewards"):
                return super()._calculate_rewards(*arguments, **named)

    return Timed


class Logged(Counting):
    """Times the optimizer and whole steps, and keeps the trainer's own log of each."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self.truth.log: list[dict[str, float]] = []  # type: ignore[attr-defined, misc]
        self._began: dict[str, float] = {}

    def _ends(self, what: str) -> None:
        seconds = self.truth.seconds
        seconds[what] = seconds.get(what, 0.0) + time.monotonic() - self._began[what]

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the stopwatch of a step."""
        self._began["whole step"] = time.monotonic()

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        """Stop it."""
        super().on_step_end(*arguments, **named)
        self._ends("whole step")

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Start that of the optimizer."""
        self._began["optimizer"] = time.monotonic()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Stop it."""
        self._ends("optimizer")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
        """Keep the loss, and the tokens where it has generated."""
        super().on_log(args, state, control, logs, **named)
        if "loss" in logs:
            self.truth.log.append({name: logs[name] for name in ("loss", "num_tokens") if name in logs})  # type: ignore[attr-defined]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--door", default="")
    options = parser.parse_args()
    truth, module = Truth(), example()
    module.GRPOTrainer = timed(module.GRPOTrainer, truth)

    def reward(*arguments: Any, **named: Any) -> list[float]:
        with truth.spending("reward"):
            time.sleep(REWARD_SECONDS)
            strike("reward")
            rewards: list[float] = module.repeats(*arguments, **named)
            return rewards

    trainer = module.trainer("saved", options.steps, reward, 16)
    trainer.args.logging_steps = 1
    trainer.add_callback(Logged(truth))
    open_trainer(options.door, trainer)
    trainer.train()
    truth.write(trainer.model)


main()
