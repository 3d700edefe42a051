"""The imitated engine of the demo: what it counts, under the names that the dashboard reads."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tachograph_lab.demo import engine
from tachograph_lab.monitoring import get
from tachograph_lab.processes import free_port

DASHBOARD = Path(__file__).parents[3] / "grafana/dashboards/run.json"


def serve(address: str) -> engine.Engine:
    """Start an engine in this process."""
    server = engine.Engine(address)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def counted(address: str) -> dict[str, float]:
    """Return what it shows, by name."""
    families = text_string_to_metric_families(get(f"http://{address}/metrics"))
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_it_counts_what_it_is_asked_for() -> None:
    """Answers, their seconds and tokens; but for an old name and one of weights the dashboard finds all of vLLM."""
    address = f"127.0.0.1:{free_port()}"
    server = serve(address)
    try:
        engine.generate(address, 0.1, 64)
        engine.generate(address, 0.3, 64)
        seen = counted(address)
    finally:
        server.shutdown()
        server.server_close()
    assert seen[engine.TOKENS] == 128
    assert (seen[engine.ANSWERS], seen[engine.SECONDS]) == (2, 0.4)
    assert seen[engine.RUNNING] == 0
    read = set(re.findall(r"vllm:\w+", DASHBOARD.read_text(encoding="utf-8")))
    assert read - {*seen} == {"vllm:gpu_cache_usage_perc", "vllm:rl_weight_update_operation_duration_seconds_count"}


def test_who_generates_waits_for_an_engine_that_is_gone() -> None:
    """As long as it takes until it is there again."""
    address = f"127.0.0.1:{free_port()}"
    waiting = threading.Thread(target=engine.generate, args=(address, 0.0, 1), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    server = serve(address)
    try:
        waiting.join(60)
        assert not waiting.is_alive()
        assert counted(address)[engine.ANSWERS] == 1
    finally:
        server.shutdown()
        server.server_close()
