"""VictoriaMetrics in Prometheus' place: vmagent scrapes, one store keeps the samples, vmalert evaluates the rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tachograph_lab import binaries
from tachograph_lab.live.watched_fleet import WatchedFleet
from tachograph_lab.scenario.definition import EVALUATION_SECONDS

FLAGS = {
    "store": ("-search.latencyOffset=0s", "-search.disableCache", "-storage.cacheSizeIndexDBTagFilters=1"),
    "vmagent": (
        "-promscrape.config.strictParse=false",
        "-promscrape.fileSDCheckInterval=5s",
        "-remoteWrite.flushInterval=200ms",
    ),
    "vmalert": (
        "-disableAlertgroupLabel",
        "-rule.evalDelay=5s",
        "-remoteWrite.flushInterval=100ms",
        "-remoteWrite.concurrency=1",
    ),
}
"""What docs/deploy/other-prometheus.md asks for; addresses and folders come on top."""


class VictoriaFleet(WatchedFleet):
    """A scenario's fleet with VictoriaMetrics and Alertmanager watching it, with the shipped files."""

    parts: Sequence[str] = ("alertmanager", "store", "vmagent", "vmalert")
    store = "store"
    ruler = "vmalert"
    missed = "vmalert_iteration_missed_total"
    later_seconds = 30.0

    def _programs(self) -> dict[str, Path]:
        return {**super()._programs(), **binaries.find_victoria()}

    def _address_flag(self, part: str) -> str:
        return "-httpListenAddr" if part in FLAGS else super()._address_flag(part)

    def _arguments(self, part: str) -> list[str]:
        if part not in FLAGS:
            return super()._arguments(part)
        store, data = self.url("store"), self._data(part)
        own = {
            "store": [f"-storageDataPath={data}"],
            "vmagent": [
                f"-promscrape.config={self.folder / 'prometheus/prometheus.yml'}",
                f"-remoteWrite.url={store}/api/v1/write",
                f"-remoteWrite.tmpDataPath={data}",
            ],
            "vmalert": [
                f"-rule={self.folder / 'prometheus/rules/*.yml'}",
                f"-datasource.url={store}",
                f"-remoteWrite.url={store}",
                f"-remoteRead.url={store}",
                f"-notifier.url={self.url('alertmanager')}",
                f"-evaluationInterval={self._intervals.get('evaluation', EVALUATION_SECONDS):g}s",
            ],
        }
        return [*own[part], *FLAGS[part]]
