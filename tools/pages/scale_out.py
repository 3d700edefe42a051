"""The example of a scale-out, deploy/scale-out/: what the bundle has for two cells and the level above, without rules.

The rules are those of `prometheus/`, on two levels; of the level above there are also some about cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from tachograph.bundle import scale_out
from tachograph.bundle.site import Site

EXAMPLE = Path(__file__).parents[2] / "deploy/scale-out"
OF_A_CELL = ("prometheus", "targets/dcgm", "targets/node", "targets/prometheus", "targets/tachograph")
SHOWN = (
    "above/prometheus-0.yml", "above/prometheus-1.yml", "above/rules/cells.yml",
    "above/targets/alertmanager.yml", "above/targets/prometheus.yml",
    *(f"cells/{cell}/{name}.yml" for cell in ("hall-1", "hall-2") for name in OF_A_CELL),
)  # fmt: skip


@cache
def _files() -> Mapping[str, str]:
    return scale_out.files(Site({}), scale_out.read(EXAMPLE / "cells.yml"))


def _file(name: str) -> str:
    return _files()[name]


def example_files() -> dict[str, Callable[[], str]]:
    """Return what writes each file of the example, by its path."""
    return {f"deploy/scale-out/{name}": partial(_file, name) for name in SHOWN}
