"""The rules, routes, dashboards and runbooks that are shipped: in the wheel, else in the checkout."""

from __future__ import annotations

from pathlib import Path

INSTALLED = Path(__file__).parent / "shipped_files"
"""Laid out like the repository; setup.py fills it when a wheel is built."""

CHECKOUT = Path(__file__).parents[2]


def folder() -> Path:
    """Return the folder that holds `prometheus/`, `alertmanager/`, `grafana/dashboards/` and `runbooks/`."""
    return INSTALLED if INSTALLED.is_dir() else CHECKOUT
