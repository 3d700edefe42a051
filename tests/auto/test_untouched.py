"""What our folder on PYTHONPATH does to a Python that never imports PyTorch, and to what it stands in the place of."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tachograph.auto.command import COPIED, FOLDER, PACKAGE, main, write_copy
from tests.client.conftest import Exporter, wait_until

DESCRIBES = """
import os, signal, sys, threading
hooks = [type(each).__name__ for each in sys.meta_path if type(each).__name__ != "TorchHook"]
listed = sorted(os.listdir("/proc/self/fd"))
handlers = [signal.getsignal(number) for number in signal.valid_signals()]
print(sorted(sys.modules), threading.active_count(), listed, handlers, hooks, len(sys.path_hooks))
print(sys.excepthook is sys.__excepthook__, sys.argv, sys.flags, sorted(os.environ.keys() - {"PYTHONPATH"}))
print("on stderr", file=sys.stderr)
sys.exit(3)
"""
TORCH = """
import sys, threading
loader = __spec__.loader
def answer(): return 42
"""


def run(code: str, *path: Path, folder: Path | None = None, **environment: str) -> tuple[int, str, str]:
    """Run a program of Python's with these folders on PYTHONPATH; return its status, output and errors."""
    given = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "TACHOGRAPH"))}
    given |= {"PYTHONPATH": os.pathsep.join(map(os.fspath, path)), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    words = [sys._base_executable, "-c", code]  # type: ignore[attr-defined]
    done = subprocess.run(words, env=given, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    return done.returncode, done.stdout, done.stderr


def written(folder: Path, name: str, text: str) -> Path:
    """Return a folder that holds a module of this text."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize("theirs", ["", "import json\nopen('/dev/null').close()\n"])
def test_a_program_without_pytorch_is_as_without(tmp_path: Path, theirs: str) -> None:
    """The same modules, threads, descriptors, handlers, output and status, with a sitecustomize and without."""
    other = written(tmp_path / "other", "sitecustomize", theirs) if theirs else tmp_path
    assert run(DESCRIBES, FOLDER, other) == run(DESCRIBES, other)
    assert run(DESCRIBES, FOLDER, other)[0] == 3


def test_the_hook_is_all_that_there_is(tmp_path: Path) -> None:
    """Once, though the folder is there twice; and not at all where recording is off, or Python has no place for it."""
    count = "import sys; print(sum(type(each).__name__ == 'TorchHook' for each in sys.meta_path))"
    write_copy(tmp_path / "copy")
    assert run(count, FOLDER)[1] == "1\n"
    assert run(count, FOLDER, tmp_path / "copy")[1:] == ("1\n", "")
    assert run(count, FOLDER, TACHOGRAPH_DISABLED="1")[1:] == ("0\n", "")
    assert run(count, tmp_path / "missing")[1:] == ("0\n", "")


SHADOWED = {
    "plain": "print('theirs', __name__, __file__)",
    "raises": "print('theirs'); raise ValueError('theirs')",
    "misses": "print('theirs'); import there_is_no_such_module",
    "exits": "print('theirs'); raise SystemExit(4)",
    "opentelemetry": (  # takes its folder from the environment, for children not to be instrumented
        "import os; os.environ['PYTHONPATH'] = os.environ['PYTHONPATH'].replace(os.path.dirname(__file__), '')"
    ),
    "chains": (  # as ddtrace and PyCharm's debugger do: take the own folder away, and import the next one
        "import os, sys; print('theirs'); here = os.path.dirname(__file__)\n"
        "before = sys.path[:]; sys.path[:] = [each for each in before if each != here]\n"
        "mine = sys.modules.pop('sitecustomize')\n"
        "try:\n import sitecustomize\n"
        "except ImportError: pass\n"
        "finally: sys.path[:] = before; sys.modules['sitecustomize'] = mine"
    ),
    "hooks": (  # as wrapt does, and with it most that instruments other people's modules
        "import sys\nfrom importlib.util import find_spec\n"
        "class Finder:\n asked = False\n"
        " def find_spec(self, name, path=None, target=None):\n"
        "  if name != 'torch' or self.asked: return None\n"
        "  self.asked = True; spec = find_spec(name); self.asked = False; print('found'); return spec\n"
        "sys.meta_path.insert(0, Finder())"
    ),
}


@pytest.mark.parametrize("kind", SHADOWED)
@pytest.mark.parametrize("verbose", [False, True])
def test_the_sitecustomize_in_whose_place_ours_is_runs_once(tmp_path: Path, kind: str, verbose: bool) -> None:
    """As without us: with its output, its faults as Python shows them, and what it leaves in the environment."""
    other = written(tmp_path / "other", "sitecustomize", SHADOWED[kind])
    written(other, "torch", "print('imported')")
    code = (
        "import os, sys\n"
        "print([each for each in os.environ['PYTHONPATH'].split(os.pathsep) if not each.endswith('auto/folder')])\n"
        "print('sitecustomize' in sys.modules and sys.modules['sitecustomize'].__file__)\n"
        "import torch"
    )
    for path in ((FOLDER, other), (other, FOLDER)):
        status, out, errors = run(code, *path, **({"PYTHONVERBOSE": "1"} if verbose else {}))
        alone = run(code, other, **({"PYTHONVERBOSE": "1"} if verbose else {}))
        assert (status, out) == alone[:2]
        assert out.count("imported") == (kind != "exits")
        if not verbose and kind != "exits":  # which Python shows with every frame
            assert errors == alone[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("mode", [0o700, 0o000])
def test_a_folder_that_may_not_be_read_is_none(tmp_path: Path, mode: int) -> None:
    """The program runs as without it, and says nothing of it."""
    for each in (tmp_path, *list(tmp_path.parents)[:2]):
        each.chmod(0o755)
    folder = tmp_path / "auto"
    write_copy(folder)
    folder.chmod(mode)
    code = (
        "import os, subprocess, sys; os.setuid(65534)\n"
        f"sys.exit(subprocess.call([sys.executable, '-c', {DESCRIBES!r}]))"
    )
    assert run(code, folder, folder=Path("/")) == run(code, Path("/nowhere"), folder=Path("/"))


def test_what_only_looks_for_pytorch_leaves_no_trace(tmp_path: Path) -> None:
    """Many ask whether it is installed; that loads nothing of ours, and shows PyTorch's own loader."""
    folder = written(tmp_path / "other", "torch", TORCH)
    code = (
        "import sys; from importlib.util import find_spec; spec = find_spec('torch'); find_spec('torch')\n"
        "print(type(spec.loader).__name__, spec.origin, [name for name in sys.modules if 'tachograph' in name])"
    )
    assert run(code, FOLDER, folder) == run(code, folder)


FAULTS: Mapping[str, str] = {
    "auto/copied.py": "raise RuntimeError('ours')",
    "auto/begin.py": "def begin(torch): raise RuntimeError('ours')",
    "client/recorder.py": "import there_is_no_such_module",
    "attach/torch_hooks.py": "this is no Python",
}


@pytest.mark.parametrize("broken", [*FAULTS, None])
def test_a_fault_of_ours_leaves_the_program_alone(tmp_path: Path, broken: str | None) -> None:
    """Whatever of ours fails, what the program imports is what it imports without us; the exporter hears of it, once.

    What stands in for PyTorch here has none of its names, so that none of our hooks finds what it looks for.
    """
    write_copy(tmp_path / "auto")
    if broken is not None:
        (tmp_path / "auto/site-packages/tachograph" / broken).write_text(FAULTS[broken])
    folder = written(tmp_path / "other", "torch", TORCH)
    code = (
        "import torch, sys; print(torch.answer(), type(torch.__loader__).__name__, torch.loader.__dict__.keys())\n"
        "import threading; print(torch.__spec__.origin, threading.active_count()); import importlib\n"
        "print(importlib.reload(torch) is torch)"
    )
    exporter = Exporter(tmp_path / "rank.sock")
    exporter.start()
    assert run(code, tmp_path / "auto", folder, TACHOGRAPH_SOCKET=str(exporter.path)) == run(code, folder)
    if broken in (None, "auto/copied.py"):  # nothing is wrong, or there is nothing that could say so
        assert exporter.talks == []
    else:
        wait_until(lambda: exporter.talks and exporter.talks[0].frames)
        ((told,),) = (talk.frames for talk in exporter.talks)
        assert told["type"] == "unrecorded"
        assert re.match("RuntimeError: ours|ModuleNotFoundError: No module named 'there|SyntaxError: ", told["why"])
    exporter.stop()
    folder = written(folder, "torch", "raise OSError('no driver')")
    status, out, errors = run("import torch", tmp_path / "auto", folder)
    assert (status, out, errors.splitlines()[-1]) == (1, "", "OSError: no driver")


def test_a_recorder_made_before_pytorch_is_imported_is_the_only_one(tmp_path: Path) -> None:
    """What makes recorders tells our hook; a release from before it did counts as recording once it is imported."""
    folder = written(tmp_path / "other", "torch", TORCH)
    package = folder / "tachograph/client"
    package.mkdir(parents=True)
    for name in ("__init__", "client/__init__"):
        (folder / f"tachograph/{name}.py").touch()
    ours = "print([name for name in sys.modules if name.startswith('_tachograph_auto.auto')])"
    for recorder, is_observed in (
        ("made = []\ndef on_created(act): made.append(act)", True),
        ("made = []\ndef on_created(act): act()", False),
        ("class Recorder: pass", False),
    ):
        (package / "recorder.py").write_text(recorder)
        code = f"import sys, tachograph.client.recorder, torch; {ours}"
        assert ("_tachograph_auto.auto.begin" in run(code, FOLDER, folder)[1]) is is_observed


def test_a_copy_has_all_that_is_imported() -> None:
    """By what it records with, at once or later: the packages that are copied import no other of ours."""
    known = {*COPIED, *(path.stem for path in PACKAGE.glob("*.py"))}
    files = [path for name in COPIED for path in (PACKAGE / name).rglob("*.py") if path.name != "command.py"]
    assert len(files) > 100
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tachograph."):
                assert (node.module or "").split(".")[1] in known, file
            assert not isinstance(node, ast.Import) or all(not one.name.startswith("tachograph") for one in node.names)


def test_the_command_names_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On which nothing lies but sitecustomize; a copy replaces an older one, and says where it cannot be written."""
    assert main(["--path"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert [each.name for each in folder.iterdir() if each.name != "__pycache__"] == ["sitecustomize.py"]
    for _ in range(2):
        assert main(["--copy", str(tmp_path / "copy")]) == 0
    assert {each.name for each in (tmp_path / "copy").iterdir()} == {"sitecustomize.py", "site-packages"}
    (tmp_path / "file").touch()
    assert main(["--copy", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("tachograph auto: the copy could not be written: ")


@pytest.mark.parametrize(("raises", "said"), [("signal.raise_signal(signal.SIGUSR1)", "mine"), ("1 / 0", "imported")])
def test_what_a_signal_handler_raises_is_the_programs(tmp_path: Path, raises: str, said: str) -> None:
    """A watchdog may strike while our code runs: its exception goes through, and ours does not."""
    folder = written(tmp_path / "tachograph", "__init__", "")
    written(folder / "client", "__init__", "")
    written(folder / "client", "recorder", f"import signal\ndef on_created(act): {raises}")
    code = (
        "import signal\ndef watchdog(*_): raise TimeoutError\nsignal.signal(signal.SIGUSR1, watchdog)\n"
        "try: import tachograph.client.recorder; print('imported')\nexcept TimeoutError: print('mine')"
    )
    assert run(code, FOLDER, tmp_path) == (0, f"{said}\n", "")
