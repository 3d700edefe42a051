"""Programs that use PyTorch and do not outlive their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.torch_programs import TorchProgram, TorchPrograms


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch, which is imported once a test runs: every worker collects these files."""
    return pytest.importorskip("torch")


@pytest.fixture
def torch_program(torch_programs: TorchPrograms) -> Iterator[Callable[..., TorchProgram]]:
    """Start programs that do not outlive the test."""
    started: list[TorchProgram] = []

    def start(code: str, *arguments: object, **environment: str) -> TorchProgram:
        started.append(torch_programs(code, *arguments, **environment))
        return started[-1]

    yield start
    for program in started:
        program.stop()
