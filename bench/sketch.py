"""How far p50 and p99 of step time are off, and what nodes send for them, at 1,000 to 16,000 ranks.

The exporter's native and classic histograms beside every step gathered, DDSketch and t-digest. Each node of eight ranks
makes one of the steps of five minutes; they are merged as a reader of all nodes would. `--doc` writes the table, and a
picture of how each grows with the steps.
"""

from __future__ import annotations

import argparse
import math
import random
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from sketch_plot import Point, crossing, plot
from tachograph.catalog.train import TRAIN_STEP_SECONDS
from tachograph.node.exposition import TEXT, render
from tachograph.node.histograms import BOUNDS, RunHistogram
from tachograph.node.protobuf import ProtobufExposition
from tachograph.wire import FINE_SCHEMA, bucket_index
from tachograph_lab import table

# Only `make bench` installs them.
DDSketch, DDSketchProto = import_module("ddsketch").DDSketch, import_module("ddsketch.pb.proto").DDSketchProto
tdigest_double = import_module("datasketches").tdigest_double

DOCUMENT = Path(__file__).parent.parent / "docs" / "evidence" / "sketches.md"
BEGIN, END = "<!-- written by bench/sketch.py --doc -->", "<!-- end -->"
PICTURE = DOCUMENT.parent.parent / "img" / "sketches.svg"
SIZES = (1_000, 4_000, 16_000)
GROWTH = [2**power for power in range(20)]
"""Of how many steps sketches are made, added one after the other, to see how they grow."""

RANKS_PER_NODE = 8
STEPS = 50
SHARES = (0.5, 0.99)
DDSKETCH_ACCURACY = 0.011
"""Half of the distance between our bounds: buckets as wide as ours."""

TDIGEST_K = 100
"""The package's default is 200, which is twice as large."""


class Way(NamedTuple):
    """A kind of sketch: of a node's steps, of many sketches, its quantile, its bytes as sent, what it has in memory."""

    make: Callable[[list[float]], Any]
    merge: Callable[[Iterable[Any]], Any]
    quantile: Callable[[Any, float], float]
    encode: Callable[[Any], bytes]
    parts: Callable[[Any], int]


def steps_of(ranks: int, seed: int = 1) -> Iterator[list[float]]:
    """Yield the steps of each node: 0.8 s with noise of 4 %; 1 rank in 100 a fifth slower; 1 step in 200 stalls."""
    chance = random.Random(seed)
    for _ in range(ranks // RANKS_PER_NODE):
        found = []
        for _ in range(RANKS_PER_NODE):
            usual = 0.8 * (1.2 if chance.random() < 0.01 else 1.0)
            for _ in range(STEPS):
                stall = 0.8 * chance.paretovariate(1.5) if chance.random() < 0.005 else 0.0
                found.append(min(usual * math.exp(chance.gauss(0, 0.04)) + stall, 300.0))
        yield found


def histogram(steps: Iterable[float]) -> RunHistogram:
    """Return what an exporter counts of fine buckets."""
    counts: dict[int, int] = {}
    total = 0.0
    for step in steps:
        index = bucket_index(step, FINE_SCHEMA)
        counts[index] = counts.get(index, 0) + 1
        total += step
    return RunHistogram(counts, total)


def added(histograms: Iterable[RunHistogram]) -> RunHistogram:
    """Return the sum, as Prometheus adds native histograms."""
    counts: dict[int, int] = {}
    total = 0.0
    for each in histograms:
        for index, count in each.counts.items():
            counts[index] = counts.get(index, 0) + count
        total += each.sum
    return RunHistogram(counts, total)


def native_quantile(found: RunHistogram, share: float) -> float:
    """Return what Prometheus 3 interpolates: exponentially within a bucket."""
    wanted = share * sum(found.counts.values())
    for index, count in sorted(found.counts.items()):
        if count >= wanted:
            return float(2 ** ((index - 1 + wanted / count) / 2**FINE_SCHEMA))
        wanted -= count
    raise ValueError("no step")


def classic_quantile(found: RunHistogram, share: float) -> float:
    """Return what Prometheus interpolates of classic buckets: linearly."""
    counts = found.classic()
    wanted = share * sum(counts)
    for low, high, count in zip((0.0, *BOUNDS), BOUNDS, counts, strict=False):
        if count >= wanted:
            return low + (high - low) * wanted / count
        wanted -= count
    return BOUNDS[-1]


def native_bytes(found: RunHistogram) -> bytes:
    """Return the part of a page that is the native histogram."""
    page = ProtobufExposition().render([found.sample(TRAIN_STEP_SECONDS, ("llama-70b",))])
    return page[page.index(b"tachograph_run_step_distribution_seconds") :]


def classic_text(found: RunHistogram) -> bytes:
    """Return the part of a page that is the classic histogram."""
    return render([found.sample(TRAIN_STEP_SECONDS, ("llama-70b",))], TEXT)


def dd_sketch(steps: Iterable[float]) -> Any:
    """Return a DDSketch of steps."""
    sketch = DDSketch(DDSKETCH_ACCURACY)
    for step in steps:
        sketch.add(step)
    return sketch


def t_digest(steps: Iterable[float]) -> Any:
    """Return a t-digest of steps."""
    digest = tdigest_double(TDIGEST_K)
    for step in steps:
        digest.update(step)
    return digest


def merged(whole: Any, sketches: Iterable[Any]) -> Any:
    """Return an empty sketch of a package with all of these added to it."""
    for each in sketches:
        whole.merge(each)
    return whole


def exact(steps: list[float], share: float) -> float:
    """Return the step that so many are no longer than."""
    return sorted(steps)[math.ceil(share * len(steps)) - 1]


WAYS: Mapping[str, Way] = {
    "every step gathered": Way(
        list, lambda nodes: [step for node in nodes for step in node], exact,
        lambda steps: struct.pack(f"<{len(steps)}d", *steps), len,
    ),
    "native histogram": Way(histogram, added, native_quantile, native_bytes, lambda found: len(found.counts)),
    "classic histogram": Way(histogram, added, classic_quantile, classic_text, lambda _: len(BOUNDS) + 1),
    "DDSketch": Way(
        dd_sketch, lambda nodes: merged(DDSketch(DDSKETCH_ACCURACY), nodes),
        lambda sketch, share: float(sketch.get_quantile_value(share)),
        lambda sketch: bytes(DDSketchProto.to_proto(sketch).SerializeToString()),
        lambda sketch: len(DDSketchProto.to_proto(sketch).positiveValues.contiguousBinCounts),
    ),
    "t-digest": Way(
        t_digest, lambda nodes: merged(tdigest_double(TDIGEST_K), nodes),
        lambda digest, share: float(digest.get_quantile(share)),
        lambda digest: bytes(digest.serialize()), lambda digest: len(digest.serialize()) // 16,
    ),
}  # fmt: skip


def measure(ranks: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each way, of one run."""
    nodes = list(steps_of(ranks))
    every = [step for node in nodes for step in node]
    true = [exact(every, share) for share in SHARES]
    for name, way in WAYS.items():
        sketches = [way.make(node) for node in nodes]
        began = time.process_time()
        whole = way.merge(sketches)
        merging = time.process_time() - began
        found = [way.quantile(whole, share) for share in SHARES]
        errors = [abs(one / other - 1) * 100 for one, other in zip(found, true, strict=True)]
        sent = [len(way.encode(sketch)) for sketch in sketches]
        yield {
            "ranks": f"{ranks:,}",
            "sketch": name,
            "p50 off, %": f"{errors[0]:.2f}",
            "p99 off, %": f"{errors[1]:.2f}",
            "bytes from a node": f"{sum(sent) / len(sent):,.0f}",
            "bytes of the whole": f"{len(way.encode(whole)):,}",
            "numbers held": f"{way.parts(whole):,}",
            "ms to merge": f"{merging * 1000:,.1f}",
        }


def grown() -> dict[str, list[Point]]:
    """Return how many bytes each way takes, as sent, for how many steps, added to one sketch as they come."""
    steps = [step for node in steps_of(GROWTH[-1] // STEPS + RANKS_PER_NODE) for step in node]
    return {name: [(count, len(way.encode(way.make(steps[:count])))) for count in GROWTH] for name, way in WAYS.items()}


def main() -> None:
    """Print the table, and write it into the document where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--doc", action="store_true", help="write the table into docs/evidence/sketches.md")
    options = parser.parse_args()
    rows = [row for ranks in options.ranks for row in measure(ranks)]
    table.show(f"Step times of five minutes, {STEPS} a rank", rows)
    lines = grown()
    gathered = lines["every step gathered"]
    crossings = {name: found for name, line in lines.items() if (found := crossing(gathered, line)) is not None}
    print(
        "  smaller than every step gathered:", {name: f"from {steps:,.0f} steps" for name, steps in crossings.items()}
    )
    if options.doc:
        PICTURE.write_text(plot(lines))
        rows_of_table = table.markdown(list(rows[0]), [row.values() for row in rows])
        DOCUMENT.write_text(table.between(DOCUMENT.read_text(), BEGIN, END, rows_of_table))
    table.save("sketch", {"rows": rows, "bytes by steps": lines, "crossings": crossings})


if __name__ == "__main__":
    main()
