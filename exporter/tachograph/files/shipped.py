"""The rules, routes, dashboards and runbooks that are shipped: in the wheel, else in the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INSTALLED = Path(__file__).parents[1] / "shipped_files"
"""Laid out like the repository; setup.py fills it when a wheel is built."""

CHECKOUT = Path(__file__).parents[3]


def folder() -> Path:
    """Return the folder that holds `prometheus/`, `alertmanager/`, `grafana/dashboards/` and `runbooks/`."""
    return INSTALLED if INSTALLED.is_dir() else CHECKOUT


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML file's content; libyaml, where PyYAML was built with it, takes a tenth of the time."""
    import yaml  # only here: most of what is shipped is read without it

    content: dict[str, Any] = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content
