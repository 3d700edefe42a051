"""The wheel: what is in it, and what its commands do in an environment that has nothing else, or one extra."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Callable
from email import message_from_string
from pathlib import Path

import pytest

from tachograph.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

NEEDS = {
    "exporter": ["--no-gpu"],
    "silence": ["--list"],
    "top": ["--once"],
    "triage": ["a-run"],
    "report": ["a-run", "--out", "-"],
    "bundle": ["--out", "/nonexistent/bundle"],
    "doctor": [],
    "logs": [__file__],
    "compare": ["a-run", "another"],
}
"""Arguments with which a command cannot do without its extra."""


@pytest.fixture(scope="module")
def empty(environment: Callable[[str], Path]) -> Path:
    """The command of an environment with the wheel alone."""
    return environment("")


@pytest.fixture(scope="module")
def tools(environment: Callable[[str], Path]) -> Path:
    """The command of an environment with the extra `tools`."""
    return environment("tools")


@pytest.fixture(scope="module")
def exporter(environment: Callable[[str], Path]) -> Path:
    """The command of an environment with the extra `exporter`."""
    return environment("exporter")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd="/", env={})


def test_the_wheel_holds_the_package_alone(wheel: Path) -> None:
    """No lab, no tests, no tools; each module of the package, and the data that it reads."""
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0].removesuffix(".dist-info").partition("-")[0] for name in names} == {"tachograph"}
    package = ROOT / "exporter/tachograph"
    modules = {f"tachograph/{path.relative_to(package)}" for path in package.rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {"tachograph/py.typed", "tachograph/report/report.html"} <= names
    shipped = {name.removeprefix("tachograph/shipped_files/") for name in names if "/shipped_files/" in name}
    for folder in ("prometheus/src", "prometheus/targets", "grafana/dashboards", "alertmanager/templates", "runbooks"):
        assert {path.name for path in (ROOT / folder).iterdir()} == {
            name.rpartition("/")[2] for name in shipped if name.startswith(f"{folder}/")
        }


def test_the_client_is_a_small_part(wheel: Path) -> None:
    """What a training process may import has at most 300 KB of the wheel; a package that is not named here counts."""
    others = {
        "node", "shipped_files", "top", "report", "bundle", "dashboards", "doctor", "silence", "watch", "logs",
        "blackbox", "collect", "signatures", "triage", "preflight", "bisect", "compare", "history", "supervise",
    }  # fmt: skip
    with zipfile.ZipFile(wheel) as archive:
        parts = [(one.filename.split("/"), one.compress_size) for one in archive.infolist()]
    assert (
        100_000 < sum(size for (top, part, *_), size in parts if top == "tachograph" and part not in others) <= 300_000
    )


def test_the_metadata_is_complete(wheel: Path) -> None:
    """The page on PyPI: the README, whose links all work, addresses, keywords and classifiers."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(name).decode("utf-8"))
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert links
    assert all(link.startswith(("https://", "http://", "#")) for link in links)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Keywords"]
    assert "Typing :: Typed" in metadata.get_all("Classifier", ())
    assert {text.split(",")[0] for text in metadata.get_all("Project-URL", ())} >= {"Source", "Changelog", "Issues"}


def test_the_bundle_needs_no_checkout(tools: Path, tmp_path: Path) -> None:
    """From the wheel alone: the rules are the committed ones, and the others are there."""
    done = run(tools, "bundle", "--out", tmp_path / "bundle")
    assert (done.returncode, done.stderr) == (0, "")
    for path in (ROOT / "prometheus/rules").glob("*.yml"):
        assert (tmp_path / "bundle/rules" / path.name).read_bytes() == path.read_bytes()
    for name in ("alertmanager/subroute.yml", "dashboards/run.json", "runbooks/RankDead.md"):
        assert (tmp_path / "bundle" / name).is_file()
    assert run(tools, "bundle", "--check", tmp_path / "bundle/alertmanager/subroute.yml").returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_no_extra(empty: Path, wheel: Path, command: str) -> None:
    """Whoever looks at what a command does has its help; `top` may ask for its extra."""
    done = run(empty, command, "--help")
    if command == "top" and done.returncode:
        assert done.stderr.endswith(f" is not installed: pip install 'tachograph[tools] @ {wheel.as_uri()}'\n")
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: tachograph {command}")


@pytest.mark.parametrize("command", NEEDS)
def test_a_missing_extra_is_one_line(empty: Path, wheel: Path, command: str) -> None:
    """It says how to install it, from the same wheel."""
    done = run(empty, command, *NEEDS[command])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"tachograph {command}: ")
    extra = f"tachograph[{COMMANDS[command].extra}] @ {wheel.as_uri()}"
    assert done.stderr.endswith(f" is not installed: pip install '{extra}'\n")
    assert done.stderr.count("\n") == 1


def test_capture_without_a_driver_is_one_line(empty: Path, exporter: Path) -> None:
    """With NVML's bindings or without them."""
    for command in (empty, exporter):
        done = run(command, "capture", "--out", "/dev/null")
        assert done.returncode in (0, 1)
        assert (done.stdout + done.stderr).count("\n") == 1


def test_the_extra_exporter_is_enough_for_the_exporter(exporter: Path) -> None:
    """Each module of the node can be imported, and the exporter says what is wrong with its configuration."""
    assert imports(exporter, "node") == ""
    assert run(exporter, "exporter", "--help").returncode == 0
    done = run(exporter, "exporter", "--web.listen-address=nowhere", "--web.config.file=/nonexistent")
    assert done.returncode == 2
    assert done.stderr.startswith("tachograph exporter: 2 faults in the configuration\n")


def test_preflight_needs_no_extra(empty: Path) -> None:
    """On a node with neither PyTorch nor a driver; what cannot be checked without them is skipped."""
    assert imports(empty, "preflight") == ""
    done = run(empty, "preflight", "--json")
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert {one["check"]: one["summary"] for one in found["checks"]}["compute"] == "PyTorch is not installed here"


@pytest.mark.parametrize("package", ["silence", "top", "triage", "report", "dashboards", "bundle", "doctor"])
def test_the_extra_tools_is_enough_for_a_command(tools: Path, package: str) -> None:
    """Each of its modules can be imported, and its help is shown."""
    assert imports(tools, package) == ""
    done = run(tools, package, "--help")
    assert (done.returncode, done.stderr) == (0, "")


def imports(command: Path, package: str) -> str:
    """Import every module of a package; return what went wrong."""
    code = (
        f"import importlib, pkgutil, tachograph.{package} as package\n"
        "modules = pkgutil.walk_packages(package.__path__, package.__name__ + '.')\n"
        "for module in modules: importlib.import_module(module.name)"
    )
    return run(command.parent / "python", "-c", code).stderr


@pytest.mark.parametrize("arguments", [["top", "--help"], ["silence", "--help"], ["--help"]])
def test_a_closed_output_ends_a_command_quietly(tools: Path, arguments: list[str]) -> None:
    """As in `tachograph top --help | head -n 1`."""
    with subprocess.Popen([tools, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}) as done:
        assert done.stdout
        assert done.stderr
        done.stdout.close()
        assert done.stderr.read() == b""
    assert done.returncode == 141
