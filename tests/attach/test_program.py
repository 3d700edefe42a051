"""A script under `tachograph run` is what it is without: arguments, `__main__`, status, output, tracebacks."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RUN = ("-m", "tachograph", "run")
ALONE = {"TACHOGRAPH_DISABLED": "", "PATH": "", "TACHOGRAPH_SOCKET": "/nobody/rank.sock"}

SCRIPTS = {
    "facts": """
        import os, sys
        print(sys.argv, __name__, __file__, __package__, __spec__, sorted(k for k in globals() if k != "__cached__"))
        print(sys.path[0], sys.modules["__main__"].__dict__ is globals())
        print("tachograph" in sys.argv[0], os.environ.get("RANK"))
        """,
    "exit": "import sys; sys.exit(3)",
    "exit-text": "import sys; sys.exit('no luck')",
    "raises": """
        def inner():
            return 1 / 0
        def outer():
            try:
                inner()
            except ZeroDivisionError as error:
                raise KeyError("mine") from error
        outer()
        """,
    "syntax": "def (:",
    "module-missing": "import there_is_no_such_module",
    "interrupted": "raise KeyboardInterrupt",
    "own-hook": """
        import sys
        sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, trace.tb_frame.f_code.co_name)
        raise ValueError("mine")
        """,
    "spawns": """
        import multiprocessing
        def square(number):
            return number * number
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [3]))
        """,
    "os-exit": "import os; os._exit(7)",
}


def python(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", *words]
    return subprocess.run(command, cwd=folder, env=ALONE, capture_output=True, text=True, timeout=60, check=False)


def as_without(text: str) -> str:
    """Leave out the two lines that are ours."""
    ours = ("tachograph run: no training step", "tachograph: no exporter at /nobody")
    return "\n".join(line for line in text.splitlines() if not line.startswith(ours))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "script.py"
    path.parent.mkdir()
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_what_it_is_without_us(name: str, script: Path) -> None:
    """Status, output and traceback of a script are the same to the letter, whatever way it ends."""
    lines = SCRIPTS[name].splitlines()
    script.write_text("\n".join(line[8:] if len(lines) > 1 else line for line in lines))
    words = ("folder/script.py", "--run", "theirs", "-m", "x")
    without = python(*words, folder=script.parents[1])
    under = python(*RUN, "--run", "ours", *words, folder=script.parents[1])
    assert under.returncode == without.returncode
    assert under.stdout == without.stdout
    assert as_without(under.stderr) == as_without(without.stderr)


@pytest.mark.parametrize("path", ["./folder/script.py", "folder/../folder/script.py", "link/../script.py", "link/.."])
def test_a_path_is_named_as_it_is_without_us(path: str, script: Path) -> None:
    """Behind a link, `..` is the folder above what it leads to: there are the script and what lies beside it."""
    (script.parent / "below").mkdir()
    (script.parents[1] / "link").symlink_to("folder/below")
    script.write_text("import os, sys\nprint(__file__, sys.path[0], os.path.exists(__file__))")
    (script.parent / "__main__.py").write_text(script.read_text())
    without = python(path, folder=script.parents[1])
    under = python(*RUN, path, folder=script.parents[1])
    assert without.stdout.endswith(" True\n")
    assert (under.returncode, under.stdout) == (without.returncode, without.stdout)


def test_a_module_is_what_it_is_without_us(script: Path) -> None:
    """`-m` runs a package's `__main__` with the module's own name, file and place in sys.path."""
    package = script.parent
    (package / "__init__.py").write_text("")
    text = "import sys\nprint(sys.argv, __name__, __package__, __spec__.name, sys.path[0])\nfrom . import other\n"
    (package / "__main__.py").write_text(text)
    (package / "other.py").write_text("print(__name__)")
    without = python("-m", "folder", "a", folder=package.parent)
    under = python(*RUN, "-m", "folder", "a", folder=package.parent)
    assert without.stdout
    assert under.stdout == without.stdout
    assert under.returncode == 0


FACTS = """
import sys
print(sys.argv, sys.path[0], __name__, __file__, repr(__package__), type(__loader__).__name__)
print(__spec__.name, __spec__.origin, __cached__)
import other
"""


@pytest.mark.parametrize("name", ["folder", "app.pyz"])
def test_a_folder_and_an_archive_are_what_they_are_without_us(name: str, script: Path) -> None:
    """Python runs the `__main__` in them, with the others in them beside it, and says so where there is none."""
    folder = script.parent
    (folder / "other.py").write_text("print(__name__, 'tachograph' in __file__)")
    for text in (None, FACTS, "raise KeyError(1)"):
        if text is not None:
            (folder / "__main__.py").write_text(text)
        with zipfile.ZipFile(folder.parent / "app.pyz", "w") as archive:
            for file in folder.glob("*.py"):
                archive.write(file, file.name)
        without = python(name, "a", folder=folder.parent)
        under = python(*RUN, name, "a", folder=folder.parent)
        assert (under.returncode, under.stdout) == (without.returncode, without.stdout)
        said = re.sub(r'  File "[^"]*runpy[^"]*", .*\n(    .*\n)?', "", without.stderr)  # ours is another
        if text is None:
            said = said.replace(sys.executable, "tachograph run")
        assert as_without(under.stderr) == as_without(said)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("nope.py",), 2, "can't open file 'nope.py'"),
        (("-m", "nope"), 1, "No module named nope"),
        ((), 2, "no script was given"),
        (("--run",), 2, "--run needs a value"),
        (("--tokens-per-step", "many", "nope.py"), 2, "--tokens-per-step must be a number, not 'many'"),
        (("--hang-seconds", "5", "nope.py"), 2, "--hang-seconds must be a number of seconds from 10 to 86400, not 5.0"),
        (("--speed", "nope.py"), 2, "unknown option --speed"),
        (("-",), 2, "give a file, a folder or -m MODULE"),
        (("-c", "print(1)"), 2, "give a file, a folder or -m MODULE"),
        (("-u", "nope.py"), 2, "unknown option -u; Python's own go before -m"),
        (("--", "nope.py"), 2, "can't open file 'nope.py'"),
        (("python", "train.py"), 2, "give the script alone, without python: "),
        (("--", "/usr/bin/python3.12", "train.py"), 2, "give the script alone, without /usr/bin/python3.12: "),
    ],
)
def test_a_command_that_cannot_be_says_why_in_one_line(
    words: tuple[str, ...], status: int, said: str, tmp_path: Path
) -> None:
    """No script or module, no such option, an interpreter: one line on stderr, Python's status, no traceback."""
    done = python(*RUN, *words, folder=tmp_path)
    assert done.returncode == status
    assert done.stderr.startswith(f"tachograph run: {said}")
    assert done.stderr.count("\n") == 1


def test_the_script_runs_where_recording_is_disabled(script: Path) -> None:
    """TACHOGRAPH_DISABLED=1: nothing is hooked and nothing said."""
    script.write_text("import sys; print(len(sys.meta_path))")
    words = [sys.executable, *RUN, str(script)]
    environment = {**ALONE, "TACHOGRAPH_DISABLED": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nccl_is_to_time_its_collectives(tmp_path: Path) -> None:
    """Before the script makes a process group."""
    (tmp_path / "train.py").write_text("import os; print(os.environ['TORCH_NCCL_ENABLE_TIMING'])")
    assert python(*RUN, "train.py", folder=tmp_path).stdout == "1\n"


@pytest.mark.parametrize("option", ["--local_rank=3", "--local-rank=3"])
def test_what_a_launcher_puts_before_the_command_is_the_scripts(option: str, script: Path) -> None:
    """DeepSpeed's launcher, and PyTorch's old one, give a module its local rank first: a script expects it so."""
    script.write_text("import sys; print(sys.argv[1:])")
    done = python(
        "-m", "tachograph", option, "run", "--quiet", "folder/script.py", "--lr", "1", folder=script.parents[1]
    )
    assert done.stdout == f"['{option}', '--lr', '1']\n", done.stderr


def test_a_module_that_was_only_looked_for_is_observed_once_imported(script: Path) -> None:
    """Some libraries ask whether PyTorch is installed before anyone imports it."""
    script.write_text(
        "import importlib.util, sys\n"
        "from tachograph.attach.on_import import when_imported\n"
        "when_imported('wave', lambda module: print('seen', module.__name__))\n"
        "importlib.util.find_spec('wave')\nimportlib.util.find_spec('wave')\nbefore = len(sys.meta_path)\n"
        "import wave\nprint(before - len(sys.meta_path), wave.__loader__.__class__.__name__)\n"
    )
    done = python("folder/script.py", folder=script.parents[1])
    assert done.stdout == "seen wave\n1 SourceFileLoader\n", done.stderr


def test_a_module_that_is_being_imported_is_waited_for(script: Path) -> None:
    """One that imports PyTorch, as TRL's trainers do, is not whole when that is noticed; one that fails never is."""
    (script.parent / "whole.py").write_text("import early\nmade = 1\n")
    (script.parent / "broken.py").write_text("import early_too\nraise OSError\n")
    notice = "from tachograph.attach.on_import import when_imported\n"
    for early, late in (("early", "whole"), ("early_too", "broken")):
        text = f"when_imported('{late}', lambda module: print('seen', module.__name__, module.made))\n"
        (script.parent / f"{early}.py").write_text(notice + text)
    script.write_text(
        "import sys\nbefore = len(sys.meta_path)\nimport whole\nprint('imported')\n"
        "try:\n    import broken\nexcept OSError:\n    pass\nimport wave\nprint(len(sys.meta_path) - before)\n"
    )
    done = python("folder/script.py", folder=script.parents[1])
    assert done.stdout == "imported\nseen whole 1\n0\n", done.stderr
