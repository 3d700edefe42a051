"""Our exposition beside prometheus_client's on the same samples: 8 GPUs and 8 ranks, about 105 series for each pair.

One run prints CPU time per page, the best of five rounds in turns, how many Python and C calls a page takes, and its
bytes. The last two are one page in both of our formats, with the step times of a run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from tachograph.catalog.index import METRICS
from tachograph.catalog.metric import HISTOGRAM, INFO, NATIVE_HISTOGRAM
from tachograph.catalog.train import TRAIN_STEP_SECONDS
from tachograph.node.exposition import TEXT, Exposition
from tachograph.node.histograms import HistogramSample, RunHistogram
from tachograph.node.protobuf import ProtobufExposition
from tachograph.node.samples import Sample

SAMPLES = [
    Sample(metric, tuple(f"{label}-{number}" for label in metric.labels), number * 1.25 + 0.1)
    for metric in METRICS
    if metric.kind not in (HISTOGRAM, NATIVE_HISTOGRAM)
    for number in range(8)
][:840]
STEPS = RunHistogram({index: 1000 - abs(index) for index in range(-20, 20)}, 1234.5)


class Samples:
    """The samples as prometheus_client's collector interface wants them."""

    def collect(self) -> Iterator[Metric]:
        """Yield one family per metric."""
        families: dict[str, Metric] = {}
        for metric, labels, value in SAMPLES:
            kind = "gauge" if metric.kind == INFO else metric.kind
            family = families.setdefault(metric.name, Metric(metric.name, metric.help, kind))
            family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
        yield from families.values()


def calls(render: Callable[[], bytes]) -> int:
    """Return how many calls of Python and C functions one page takes."""
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    render()
    sys.setprofile(None)
    return count


def milliseconds(render: Callable[[], bytes]) -> float:
    """Return the mean CPU time of a page over 100 pages."""
    began = time.process_time()
    for _ in range(100):
        render()
    return (time.process_time() - began) * 10


def main() -> None:
    """Measure both and print a line for each."""
    ours, theirs = Exposition(), Samples()
    registry = CollectorRegistry()
    registry.register(theirs)
    protobuf = ProtobufExposition()
    page_of_run: list[Sample | HistogramSample] = [*SAMPLES, STEPS.sample(TRAIN_STEP_SECONDS, ("llama-70b",))]
    pages: dict[str, Callable[[], bytes]] = {
        "tachograph": lambda: ours.render(SAMPLES, TEXT),
        "prometheus_client": lambda: generate_latest(registry),
        "text": lambda: ours.render(page_of_run, TEXT),
        "protobuf": lambda: protobuf.render(page_of_run),
    }
    rounds = [{name: milliseconds(page) for name, page in pages.items()} for _ in range(5)]
    for name, page in pages.items():
        print(f"{name:18} {min(one[name] for one in rounds):6.2f} ms {calls(page):7} calls {len(page()):7} bytes")


if __name__ == "__main__":
    main()
