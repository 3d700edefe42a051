"""Stands for an inference engine such as vLLM's server, with the names of its metrics: it counts, and takes its time.

`python -m tachograph_lab.demo.engine HOST:PORT` answers `POST /generate?seconds=S&tokens=N` after S seconds, and
`GET /metrics`. The samples are made by whoever asks.
"""

from __future__ import annotations

import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from tachograph.processes.die_with_parent import die_with_parent

RETRY_SECONDS = 1.0

RUNNING, TOKENS, SECONDS, ANSWERS = (
    "vllm:num_requests_running",
    "vllm:generation_tokens_total",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_count",
)
IDLE = ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total")
"""What stays at 0: the engine takes every request at once."""


class Engine(ThreadingHTTPServer):
    """Listens on a port, and counts what it is asked for."""

    daemon_threads = True

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        super().__init__((host, int(port)), _Request)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys((RUNNING, TOKENS, SECONDS, ANSWERS, *IDLE), 0.0)

    def count(self, **values: float) -> None:
        """Add to what is counted, by the names without `vllm:`."""
        with self._lock:
            for name, value in values.items():
                self._counts[f"vllm:{name}"] += value

    def exposition(self) -> str:
        """Return what was counted as Prometheus reads it."""
        with self._lock:
            return "".join(f'{name}{{model_name="demo"}} {value:g}\n' for name, value in self._counts.items())


class _Request(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self._answer(self.server.exposition())

    def do_POST(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query))
        seconds, tokens = float(asked["seconds"]), float(asked["tokens"])
        self.server.count(num_requests_running=1)
        time.sleep(seconds)
        self.server.count(num_requests_running=-1, generation_tokens_total=tokens)
        self.server.count(e2e_request_latency_seconds_sum=seconds, e2e_request_latency_seconds_count=1)
        self._answer("")

    def _answer(self, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def generate(address: str, seconds: float, tokens: int) -> None:
    """Have the engine at `address` take its time for a batch; wait for one that is gone, as trainers do."""
    request = urllib.request.Request(f"http://{address}/generate?seconds={seconds}&tokens={tokens}", method="POST")
    while True:
        try:
            urllib.request.urlopen(request).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    die_with_parent()
    Engine(sys.argv[1]).serve_forever()
