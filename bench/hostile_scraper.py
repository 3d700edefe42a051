"""A Prometheus during an attack: the duration of each scrape, and the content of the pages.

Four scrapes per second on one persistent connection, with gzip and OpenMetrics; a fifth of a second after each, a
health probe on a connection of its own, like a kubelet's. Prints "ready" after the first scrape, starts at a line on
standard input, and prints its results as one line of JSON.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import sys
import threading
import time

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from hostile_attacks import WITNESS

PERIOD = 0.25
TIMEOUT = 4.0
"""The scrape_timeout of the shipped prometheus.yml: a scrape that takes longer is lost."""

OWN_ADDRESS = ("127.0.0.2", 0)
"""Prometheus and the kubelet have another address than the attackers, which use 127.0.0.1."""

HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "X-Prometheus-Scrape-Timeout-Seconds": f"{TIMEOUT:g}",
}
DEAD = f'\ntachograph_rank_state{{run="{WITNESS}",rank="1",state="dead"}} 1\n'


class Scraper:
    """Scrapes on one persistent connection, and on a new one if that was closed, as Prometheus does."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT, source_address=OWN_ADDRESS)

    def scrape(self) -> tuple[float, str]:
        """Return the duration of a scrape and its page, empty if there was none in time."""
        began = time.perf_counter()
        page = ""
        try:
            kept = self._connection.sock is not None
            try:
                page = self._get()
            except ConnectionError:  # closed before a word was said
                self._connection.close()
                if kept:
                    page = self._get()
        except (OSError, http.client.HTTPException):
            self._connection.close()
        took = time.perf_counter() - began
        return (took, page) if page and took < TIMEOUT else (max(TIMEOUT, took), "")

    def _get(self) -> str:
        self._connection.request("GET", "/metrics", headers=HEADERS)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise http.client.HTTPException(answer.status)
        return (gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body).decode()


def probe(port: int) -> bool:
    """Return whether the exporter reports itself healthy, on a new connection within a second."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0, source_address=OWN_ADDRESS)
    try:
        connection.request("GET", "/-/healthy")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def fault_of(page: str) -> str:
    """Return why Prometheus would refuse a page, empty if it would not; each sample limit is a reason of its own."""
    try:
        for family in text_string_to_metric_families(page):  # type: ignore[no-untyped-call]
            for sample in family.samples:
                for name, value in sample.labels.items():
                    if len(value.encode("utf-8", "surrogatepass")) > 256:
                        return f"{name} of {sample.name} has more than 256 bytes"
    except (ValueError, KeyError, IndexError) as error:
        return f"not OpenMetrics: {error}"
    return ""


def samples_of(page: str) -> int:
    """Return the number of samples on a page."""
    return sum(not line.startswith("#") for line in page.splitlines())


def main() -> None:
    """Scrape for as long as the attack lasts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    scraper = Scraper(options.port)
    probes: list[bool] = []
    over = threading.Event()

    def probing() -> None:
        while not over.wait(1.0):
            probes.append(probe(options.port))

    before, page = scraper.scrape()
    fault_of(page)  # loads what is loaded once
    print("ready", flush=True)
    sys.stdin.readline()
    thread = threading.Thread(target=probing)
    thread.start()
    begin = time.monotonic()
    times: list[float] = []
    pages: list[str] = []
    forgotten = 0
    while time.monotonic() < begin + options.seconds:
        took, page = scraper.scrape()
        times.append(took)
        if page:
            forgotten += DEAD not in page
            pages = sorted([*pages, page], key=len)[-1:]
        time.sleep(max(0.0, begin + len(times) * PERIOD - time.monotonic()) if took < PERIOD else 0.0)
    over.set()
    thread.join()
    longest = pages[0] if pages else ""
    result = {
        "times": times, "lost": sum(took >= TIMEOUT for took in times), "forgotten": forgotten, "first": before,
        "samples": samples_of(longest), "fault": fault_of(longest) if longest else "no page",
        "probes": len(probes), "probes lost": probes.count(False),
    }  # fmt: skip
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
