"""From broken hardware to the page: fake GPUs behind the real pynvml, everything else as shipped.

Three of eight GPUs break at once: one is lost, one hangs the driver, one falls off the bus with Xid 79. A fourth
reports what programs do to themselves.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph_lab.demo.stack import Stack
from tachograph_lab.fake_nvml import library as fake_nvml
from tachograph_lab.pager import FIRING, PagedAlert, Pager

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

RUN = "gpus"
LOST, HUNG, FATAL, HARMLESS = 1, 5, 3, 7
BROKEN = {LOST: "GpuLost", HUNG: "GpuHung", FATAL: "GpuXidFatal"}
SEATED = {LOST, FATAL}
"""GPUs with a rank on them; nobody is known to use the others."""

OUTAGE = 16.0
PAGE_SECONDS = 60.0


class Outage:
    """The scrapes of the exporter while the GPUs were broken: how many, the faults they showed, what they lacked."""

    def __init__(self) -> None:
        self.scrapes = 0
        self.shown: set[int] = set()
        self.incomplete: list[str] = []


def series_of(page: str, gpu: int) -> set[str]:
    """Return the series of a GPU, without those of Xids, which only some have."""
    lines = [line.rpartition(" ")[0] for line in page.splitlines() if f'{{gpu="{gpu}",' in line]
    return {line for line in lines if "_xid_" not in line}


def shows(page: str, gpu: int) -> bool:
    """Return whether a page of the exporter shows a GPU's fault."""
    fault = rf'xid_timestamp_seconds{{gpu="{gpu}",.*xid="79"' if gpu == FATAL else rf'up{{gpu="{gpu}",.*}} 0'
    return re.search("^tachograph_gpu_" + fault, page, re.MULTILINE) is not None


@pytest.fixture(scope="module")
def fake(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Eight busy H100s."""
    made = fake_nvml.FakeNvml(library, tmp_path_factory.mktemp("nvml") / "state", live=True)
    made.lost = fake_nvml.GPU_IS_LOST
    return made


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pager]:
    with Pager() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def node(fake: Any, pages: Pager, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("node"), pages.url, gpus=fake.environment()) as running:
        yield running


def speak(path: Path, rank: int, uuid: str, stop: threading.Event) -> None:
    """Send the frames of a rank that computes on a GPU, until `stop` is set."""
    hello = {"v": 1, "type": "hello", "run": RUN, "rank": rank, "local_rank": rank, "world_size": 8, "attempt": 0,
             "pid": 1, "uuid": uuid, "facts": {}}  # fmt: skip
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(json.dumps(hello).encode() + b"\n")
        number = 0
        while not stop.wait(1.0):
            number += 1
            now = time.time()
            state = {"v": 1, "type": "state", "seq": number, "time": now, "step": number, "phase": "forward",
                     "phase_since": now, "progress_time": now, "metrics": {"steps_total": number}}  # fmt: skip
            connection.sendall(json.dumps(state).encode() + b"\n")


@pytest.fixture(scope="module")
def ranks(node: Stack, fake: Any, wait_for: Callable[..., Any]) -> Iterator[None]:
    """A rank on some of the GPUs, as Prometheus sees them."""
    stop = threading.Event()
    uuids = {gpu: fake.gpus[gpu].uuid.decode() for gpu in SEATED}
    speakers = [threading.Thread(target=speak, args=(node.socket, gpu, uuids[gpu], stop)) for gpu in SEATED]
    for speaker in speakers:
        speaker.start()
    wait_for(
        lambda: node.query(f'count(tachograph_gpu_up == 1) == 8 and count(node:gpu_rank:info{{run="{RUN}"}}) == 2'),
        40, "eight GPUs and two ranks",
    )  # fmt: skip
    yield
    stop.set()
    for speaker in speakers:
        speaker.join()


def scrape(node: Stack) -> str:
    """Return the exporter's page; raise TimeoutError where it waits for the driver."""
    with urllib.request.urlopen(f"{node.url('exporter')}/metrics", timeout=60) as response:
        page: str = response.read().decode()
    return page


@pytest.fixture(scope="module")
def outage(node: Stack, fake: Any, ranks: None) -> Outage:
    """Break the GPUs, and look at the exporter until every page has had its time."""
    seen = Outage()
    before = scrape(node)
    healthy = {gpu: series_of(before, gpu) for gpu in range(8) if gpu not in (LOST, HUNG)}
    assert all(len(series) > 20 for series in healthy.values())
    for xid in (13, 31, 43, 45):
        fake.queue_xid(HARMLESS, xid)
    fake.gpus[LOST].error = fake.lost
    fake.hang(HUNG)
    fake.queue_xid(FATAL, 79)
    until = time.monotonic() + OUTAGE
    while time.monotonic() < until:
        page = scrape(node)
        seen.scrapes += 1
        seen.shown |= {gpu for gpu in BROKEN if shows(page, gpu)}
        seen.incomplete += [f"GPU {gpu} lacks {missing}" for gpu, series in healthy.items()
                            if (missing := series - series_of(page, gpu))]  # fmt: skip
        time.sleep(0.05)
    fake.heal(HUNG)
    return seen


def received(pages: Pager) -> list[PagedAlert]:
    return [page for page in pages.pages() if page.critical and page.status == FIRING]


def test_the_scrape_stays_complete(outage: Outage) -> None:
    """While one GPU is lost and one hangs the driver, no scrape waits for it, and none lacks anything of the others."""
    assert outage.scrapes > 1
    assert outage.incomplete == []


@pytest.mark.parametrize("gpu", BROKEN, ids=list(BROKEN.values()))
def test_the_page_arrives_and_says_what_to_do(outage: Outage, pages: Pager, fake: Any, node: Stack, gpu: int) -> None:
    """It names GPU and node, the run and rank that suffer, and the next step."""
    assert gpu in outage.shown, f"the exporter never showed the fault of GPU {gpu}"
    page = pages.wait_for(lambda page: page.labels.get("gpu") == str(gpu) and page.status == FIRING, PAGE_SECONDS)
    assert page is not None, [(page.alert, dict(page.labels)) for page in received(pages)]
    assert page.alert == BROKEN[gpu]
    assert page.labels["uuid"] == fake.gpus[gpu].uuid.decode()
    assert (page.labels.get("run"), page.labels.get("rank")) == ((RUN, str(gpu)) if gpu in SEATED else (None, None))
    text = page.annotations["description"]
    assert text.startswith(f"GPU {gpu} of {node.node} (")
    assert f"Drain {node.node}" in text or f"drain {node.node}" in text
    assert "reboot" in text


def test_nothing_else_is_paged(outage: Outage, pages: Pager) -> None:
    """Xids 13, 31, 43 and 45 wake nobody, and three broken GPUs are three pages: one each."""
    assert sorted(page.alert for page in received(pages)) == sorted(BROKEN.values())
