"""Trains with a framework beside a real exporter, once for each case of a test file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tachograph.auto.command import FOLDER
from tachograph_lab.processes import free_port
from tests.frameworks.figures import FIGURES, Training

PROGRAMS = Path(__file__).with_name("programs")
BY_ENVIRONMENT = os.environ.get("TRAININGS_DOOR") == "auto"
"""Whether the folder of `tachograph auto` is on the path of every training, and none is under `tachograph run`."""


@dataclass(frozen=True)
class Case:
    """A program, its arguments, how many ranks torchrun, itself (`workers`) or DeepSpeed starts, and its front door.

    Door `run` is `tachograph run`, or nothing but an environment; any other one the program opens itself. `figures` are
    shown by every rank, those of `first` by rank 0 alone. Figures of `missing` cannot be known through this door: they
    must have no value.
    """

    program: str
    arguments: str = ""
    ranks: int = 0
    workers: int = 0
    deepspeed_starts: int = 0
    door: str = "run"
    figures: Sequence[str] = ()
    first: Sequence[str] = ()
    missing: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: Path = Path(sys.executable)

    @property
    def recorded_ranks(self) -> range:
        """The ranks that the exporter must show."""
        return range(max(self.ranks, self.workers, self.deepspeed_starts, 1))

    @property
    def variables(self) -> dict[str, str]:
        """What the training's environment has besides ours."""
        return {**self.environment, **({"PYTHONPATH": str(FOLDER)} if BY_ENVIRONMENT else {})}

    def words(self, run: str) -> list[str | Path]:
        """The words after `python`, or after torchrun."""
        door = ("-m", "tachograph", "run", "--name", run) if self.door == "run" and not BY_ENVIRONMENT else ()
        program = self.arguments.split() + (["--door", self.door] if self.door != "run" else [])
        words = [*door, PROGRAMS / self.program, *program]
        if not self.deepspeed_starts:
            return words
        address = ("--master_addr", "127.0.0.1", "--master_port", str(free_port()))
        launcher = ("-m", "deepspeed.launcher.runner", "--num_gpus", str(self.deepspeed_starts), *address)
        return [*launcher, "--module", *words[1:]] if door else [*launcher, *words]


class Trainings:
    """The trainings of a test file, each trained when it is first asked for."""

    def __init__(self, cases: Mapping[str, Case], scraped: Any, folder: Path) -> None:
        self._cases, self._scraped, self._folder = cases, scraped, folder
        self._done: dict[str, Training] = {}

    def __call__(self, name: str) -> Training:
        """Return a training that has ended well."""
        if name not in self._done:
            case, folder = self._cases[name], self._folder / name
            folder.mkdir()
            truth = folder / "truth"
            environment = {"TRUTH": str(truth), "TACHOGRAPH_RUN": name, **case.variables}
            done = self._scraped.run(*case.words(name), ranks=case.ranks, folder=folder, **environment)
            self._done[name] = Training(done, name, truth)
        assert self._done[name].done.status == 0, self._done[name].done.errors[-6000:]
        return self._done[name]


def figures_of(cases: Mapping[str, Case]) -> list[Any]:
    """Return a parameter set for each figure of each rank of each case: the case's name, the rank, the figure."""
    return [
        parameters(name, rank, figure)
        for name, case in cases.items()
        for rank in case.recorded_ranks
        for figure in (*case.figures, *(case.first if rank == 0 else ()))
    ]


def missing_of(cases: Mapping[str, Case]) -> list[Any]:
    """Return the same for the figures that must have no value."""
    return [
        parameters(name, rank, figure)
        for name, case in cases.items()
        for rank in case.recorded_ranks
        for figure in case.missing
    ]


def parameters(name: str, rank: int, figure: str) -> Any:
    """Return one parameter set with a readable id."""
    return pytest.param(name, rank, figure, id=f"{name}-{rank}-{figure.replace(' ', '-')}")


def shown(training: Training, rank: int, figure: str) -> Any:
    """Return what the exporter shows of a figure."""
    value, _ = FIGURES[figure](training, rank)
    return value


def compare(training: Training, rank: int, figure: str) -> None:
    """Fail unless a figure is what the program counted."""
    shown, right = FIGURES[figure](training, rank)
    if shown != right:
        pytest.fail(f"{training.run}, {figure} of rank {rank}: shown {shown}, right {right}", pytrace=False)
