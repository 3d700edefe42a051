"""Loops as public scripts write them, under `tachograph run`: what they print stays, and what is recorded is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).with_name("public")
RUN = ("-m", "tachograph", "run")

pytestmark = pytest.mark.torch


def run(scraped: Any, script: str, *arguments: str, **environment: str) -> Any:
    """Run a script without and with us, in folders of its own; assert that it prints the same to the last digit."""
    folders = [scraped.folder / f"{script}-{kind}" for kind in ("alone", "under")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    words = [sys.executable, "-W", "ignore", str(SCRIPTS / script), *arguments]
    alone = subprocess.run(
        words, env=scraped.environment(), cwd=folders[0], capture_output=True, text=True, timeout=60, check=False
    )
    name = script.removesuffix(".py")
    done = scraped.run(*RUN, "--name", name, SCRIPTS / script, *arguments, folder=folders[1], **environment)
    assert (done.status, done.out) == (alone.returncode, alone.stdout), done.errors
    return done


def phase_seconds(done: Any, run: str, phase: str) -> float:
    return done.value("phase_seconds_total", run=run, rank=0, phase=phase) or 0.0


def test_batches_are_those_that_are_trained_on(scraped: Any) -> None:
    """Neither a validation that is left by `break` nor the ones after each epoch are counted, or tag a step."""
    done = run(scraped, "classify.py")
    assert done.value("steps_total", run="classify", rank=0) == 200
    assert done.value("batches_total", run="classify", rank=0) == 200
    assert done.value("tagged_steps_total", run="classify", rank=0, tag="warm-up") == 1
    assert done.value("tagged_steps_total", run="classify", rank=0, tag="eval") is None
    assert phase_seconds(done, "classify", "eval") > 0
