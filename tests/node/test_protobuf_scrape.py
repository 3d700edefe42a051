"""Prometheus of both generations reads the protobuf format as it reads text, and its native histogram."""

from __future__ import annotations

import json
import math
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.catalog import index as catalog
from tachograph.node.app import Exporter
from tachograph.node.exposition import PROTOBUF, Form, negotiate, render
from tachograph.node.histograms import Buckets, RunHistogram
from tachograph.node.protobuf import ProtobufExposition
from tachograph.wire import FINE_SCHEMA, bucket_index
from tachograph_lab.processes import Children, free_port
from tests.node.test_exposition import node as node  # noqa: PLC0414 - its fixture

LIMIT = 60.0
DISTRIBUTION = catalog.RUN_STEP_DISTRIBUTION.name
ROOT = Path(__file__).parents[2]


class Page:
    """A page of fixed samples and one growing histogram, in the form that a reader asks for."""

    def __init__(self, samples: list[Any]) -> None:
        self.steps = RunHistogram()
        self.forms: set[Form] = set()
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                form = negotiate(self.headers.get("Accept", ""))
                page.forms.add(form)
                shown = [*samples, page.steps.sample(catalog.TRAIN_STEP_SECONDS, ("grows",))]
                body = ProtobufExposition().render(shown) if form is PROTOBUF else render(shown, form)
                self.send_response(200)
                self.send_header("Content-Type", form.content_type)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


class Reader:
    """A Prometheus that scrapes one page every second."""

    def __init__(self, children: Children, program: Path, folder: Path, page: Page, *flags: str) -> None:
        folder.mkdir()
        job = {"job_name": "node", "static_configs": [{"targets": [f"127.0.0.1:{page.server.server_port}"]}]}
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        self.child = children.start(folder.name, [*command, f"--web.listen-address=127.0.0.1:{port}", *flags])

    def query(self, expression: str) -> list[Any]:
        """Return the result of an instant query, nothing while it does not answer."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=LIMIT) as answer:
                return json.load(answer)["data"]["result"]
        except OSError:
            return []

    def wait_for(self, expression: str) -> None:
        """Return once a query has a result."""
        self.child.wait_until(lambda: bool(self.query(expression)), LIMIT)

    def series(self) -> dict[frozenset[tuple[str, str]], Any]:
        """Return every scraped series with its value, or its native histogram."""
        found = self.query('{__name__=~"(tachograph|process)_.+"}')
        return {
            frozenset(one["metric"].items()): float(one["value"][1]) if "value" in one else one["histogram"][1]
            for one in found
        }


@pytest.fixture
def page(node: Exporter) -> Iterator[Page]:
    """The page of a synthetic node."""
    served = Page(list(node.samples()))
    yield served
    served.server.shutdown()
    served.server.server_close()


Readers = tuple[Reader, Reader, Page]


@pytest.fixture
def readers(programs: Mapping[str, Path], page: Page, tmp_path: Path) -> Iterator[Readers]:
    """Return a Prometheus as it comes, one that asks for native histograms, and their page."""
    with Children(tmp_path / "logs") as children:
        text = Reader(children, programs["prometheus"], tmp_path / "text", page)
        native = Reader(
            children, programs["prometheus"], tmp_path / "native", page, "--enable-feature=native-histograms"
        )
        for reader in (text, native):
            reader.wait_for('tachograph_train_step_seconds_count{run="grows"}')
        yield text, native, page


def recorded(name: str) -> str:
    """Return the expression of a recording rule."""
    for path in (ROOT / "prometheus/rules").glob("*.yml"):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                if rule.get("record") == name:
                    return rule["expr"]
    raise AssertionError(name)


def test_prometheus_reads_both_forms_alike(readers: Readers) -> None:
    """Every series of the text, `le` included, has the same value; p50 and p99 are exact to 2.5 %, or to a bucket."""
    text, native, page = readers
    assert page.forms >= {PROTOBUF}
    assert len(page.forms) == 2
    from_text, from_protobuf = text.series(), native.series()
    more = {key for key in from_protobuf if dict(key)["__name__"] == DISTRIBUTION}
    assert {dict(key)["run"] for key in more} == {"llama-7b", "grows"}
    assert from_protobuf.keys() - more == from_text.keys()
    assert len(from_text) > 200
    different = [
        key for key, value in from_text.items()
        if value != from_protobuf[key] and not (math.isnan(value) and math.isnan(from_protobuf[key]))
    ]  # fmt: skip
    assert different == []
    (held,) = (from_protobuf[key] for key in more if dict(key)["run"] == "llama-7b")
    assert (held["count"], held["sum"]) == ("480", "101.25")
    steps = [0.3 + 0.002 * number for number in range(99)] + [2.9] * 3
    counts: dict[int, int] = {}
    for step in steps:
        index = bucket_index(step, FINE_SCHEMA)
        counts[index] = counts.get(index, 0) + 10
    page.steps.add(Buckets(counts, sum(steps), fine=True), Buckets())
    exact = {"run:step_seconds:p50": steps[50], "run:step_seconds:p99": 2.9}
    for reader, tolerance in ((native, 0.025), (text, math.sqrt(2) - 1)):
        reader.wait_for(f"{recorded('run:step_seconds:p99')} > 0")
        for name, value in exact.items():
            (found,) = (one for one in reader.query(recorded(name)) if one["metric"]["run"] == "grows")
            assert found["metric"] == {"run": "grows"}
            assert float(found["value"][1]) == pytest.approx(value, rel=tolerance)
