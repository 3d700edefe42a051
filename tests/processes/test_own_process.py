"""Our processes take no module from the working directory, to which others may be able to write."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph.processes.die_with_parent import dying_with_parent
from tachograph.processes.own_process import own_process
from tachograph.processes.process_tree import started_at

ROOT = Path(__file__).resolve().parents[2] / "exporter/tachograph"
TACHOGRAPH = str(Path(sys.executable).with_name("tachograph"))

PLANTED = """
import os
with open(os.environ["PLANTED"], "a") as file:
    file.write(__name__ + " ")
raise SystemExit(3)
"""
NAMES = (
    "resource", "tempfile", "ctypes", "json", "argparse", "signal", "socket", "select", "threading", "runpy", "queue",
    "multiprocessing", "subprocess", "pickle", "logging", "asyncio", "decimal", "yaml", "pynvml", "aiohttp",
    "tachograph",
)  # fmt: skip

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in a folder full of modules with others' names; none of them may have been imported."""
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in NAMES:
        (shared / f"{name}.py").write_text(PLANTED)
    planted = tmp_path / "planted"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    paths = {} if "PYTHONPATH" not in os.environ else {"PYTHONPATH": os.environ["PYTHONPATH"]}

    def begin(*command: str, said: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, check=False, cwd=shared, input=said, capture_output=True, text=True, timeout=60,
            env={**environment, **paths, "PLANTED": str(planted)},
        )  # fmt: skip
        assert not planted.exists(), f"{planted.read_text()}: {done.stderr[-500:]}"
        return done

    return begin


def test_every_process_of_ours_is_started_in_one_way() -> None:
    """Nothing else names this interpreter, or starts workers, with which a process would look around in its folder."""
    found = set()
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in ("executable", "get_context", "ProcessPoolExecutor")):
            continue
        for node in ast.walk(ast.parse(text)):
            words = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Call) else ""
            if words == "sys.executable" or words.startswith(("get_context(", "multiprocessing.get_context(")):
                found.add(str(path.relative_to(ROOT)))
            if isinstance(node, ast.Call) and words.startswith("ProcessPoolExecutor("):
                assert "own_workers()" in words, path
    assert found == {"processes/own_process.py", "preflight/versions.py"}  # the latter says what it runs on


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("tachograph.__main__", ("--version",), ""),
        ("tachograph.node.gpu.worker", ("--interval", "1", "--kmsg", ""), ""),
        ("tachograph.node.evidence.analyst", (), "{}\n"),
        ("tachograph.preflight.gpu_readings", (), "{}"),
        ("tachograph.preflight.folder_probe", (), '{"folder": "/nowhere", "size": 1}'),
    ],
)
def test_no_module_of_the_working_directory_is_imported(
    run: Run, module: str, arguments: tuple[str, ...], said: str
) -> None:
    """Each of our modules that runs as a process finds its own, with or without a parent that it ends with."""
    alone = run(*own_process(module, *arguments), said=said)
    ending_with_us = run(*dying_with_parent(own_process(module, *arguments)), said=said)
    assert ending_with_us.returncode == alone.returncode
    if module.endswith(("main__", "folder_probe")):
        assert alone.returncode == 0, alone.stderr
        assert alone.stdout


def test_a_pool_of_workers_takes_none_either(run: Run) -> None:
    """Workers are interpreters of their own, which look around when they begin."""
    code = (
        "import sys; sys.path.remove(''); from concurrent.futures import ProcessPoolExecutor as Pool; "
        "from tachograph.processes.own_process import own_workers; "
        "print(Pool(1, own_workers()).submit(abs, -7).result())"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout == "7\n", done.stderr


def test_the_commands_take_none(run: Run, tmp_path: Path) -> None:
    """Preflight, and a watched script with its exporter and its worker; the script still finds what lies beside it."""
    checks = ("--only", "gpus,checkpoints", "--checkpoint-dir", str(tmp_path), "--probe-size", "1MB")
    done = run(TACHOGRAPH, "preflight", "--no-torch", "--alone", *checks)
    assert "ok   checkpoints" in done.stdout, done.stderr
    own = tmp_path / "own"
    own.mkdir()
    (own / "beside.py").write_text("WORD = 'found'")
    (own / "script.py").write_text("import beside, sys; print(beside.WORD, sys.argv, sys.path[0])")
    done = run(TACHOGRAPH, "run", "--watch", str(own / "script.py"), "--lr", "3")
    assert f"found ['{own / 'script.py'}', '--lr', '3'] {own}" in done.stdout, done.stderr
    assert done.returncode == 0


POOL = """
import os
from concurrent.futures import ProcessPoolExecutor
from tachograph.processes.die_with_parent import begin_worker
from tachograph.processes.own_process import own_workers
pool = ProcessPoolExecutor(1, own_workers(), begin_worker, (os.getpid(),))
print(pool.submit(os.getpid).result(), flush=True)
input()
"""


def test_workers_end_with_a_command_that_is_killed() -> None:
    """As for the memory that many logs take: what it started is not left waiting for ever."""
    with subprocess.Popen([sys.executable, "-c", POOL], stdin=-1, stdout=-1, text=True) as command:
        assert command.stdout is not None
        worker = int(command.stdout.readline())
        command.kill()
    end = time.monotonic() + 90
    while started_at(worker) and time.monotonic() < end:
        time.sleep(0.05)
    assert not started_at(worker)
