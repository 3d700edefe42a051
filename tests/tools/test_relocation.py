"""Debian's Alertmanager finds its templates wherever it was unpacked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.binaries.relocation import BUILT_IN, FROM_WRAPPER, relocate


def test_the_path_keeps_its_length() -> None:
    """A program's text cannot grow or shrink: the new path is as long as the built-in one."""
    assert len(FROM_WRAPPER) == len(BUILT_IN)


def test_a_program_finds_its_folder(tmp_path: Path) -> None:
    """The program reads its files from its own folder, wherever that is and from any working directory."""
    program = tmp_path / "a folder/usr/bin/prometheus-alertmanager"
    templates = tmp_path / "a folder/usr/share/prometheus/alertmanager"
    program.parent.mkdir(parents=True)
    templates.mkdir(parents=True)
    (templates / "default.tmpl").write_text("here\n")
    program.write_bytes(b"#!/bin/sh\ncat " + BUILT_IN + b'/default.tmpl; echo "$@"\n')
    program.chmod(0o755)
    relocate(program)
    moved = shutil.move(tmp_path / "a folder", tmp_path / "another")
    command = [Path(moved) / "usr/bin/prometheus-alertmanager", "--flag", "two words"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True, timeout=90)
    assert done.stdout == "here\n--flag two words\n"


def test_another_build_is_left_alone(tmp_path: Path) -> None:
    """A program without the built-in path is not touched, and doing it twice changes nothing."""
    program = tmp_path / "alertmanager"
    program.write_bytes(b"\x7fELF upstream")
    relocate(program)
    assert program.read_bytes() == b"\x7fELF upstream"
    program.write_bytes(BUILT_IN)
    relocate(program)
    wrapper = program.read_bytes()
    relocate(program)
    assert program.read_bytes() == wrapper
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alertmanager", "alertmanager.relocated"]
