"""The incident of the report's tests, in a real Prometheus, and real exporters with ranks."""

from tests.node.conftest import exporter_at
from tests.node.evidence.conftest import ranks_at
from tests.report.conftest import bare, incident

__all__ = ["bare", "exporter_at", "incident", "ranks_at"]
