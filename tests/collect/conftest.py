"""Real exporters with ranks and their boxes, for the commands that fetch them."""

from tests.node.conftest import exporter_at
from tests.node.evidence.conftest import ranks_at

__all__ = ["exporter_at", "ranks_at"]
