"""Real exporters with ranks and their boxes, for the commands that fetch them, and pretenders."""

from tests.collect.pretender import other, pretender
from tests.node.conftest import exporter_at
from tests.node.evidence.conftest import ranks_at

__all__ = ["exporter_at", "other", "pretender", "ranks_at"]
