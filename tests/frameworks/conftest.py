"""The trainings of a test file; `make test-frameworks` has the environment they need."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.training import Trainings


@pytest.fixture(scope="module")
def trained(scraped: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """Trains a case of the file's table `CASES` to its end, once."""
    return Trainings(request.module.CASES, scraped, tmp_path_factory.mktemp("trainings"))
