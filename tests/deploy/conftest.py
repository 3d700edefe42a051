"""Helm itself, for the tests of the chart."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tools import helm


@pytest.fixture(scope="session")
def program() -> Path:
    """The program; `make test` fetches it."""
    try:
        return helm.find()
    except helm.HelmUnavailableError as error:
        if platform.machine() != "x86_64":
            pytest.skip(str(error))
        pytest.fail(str(error))
