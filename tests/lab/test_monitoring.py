"""The Prometheus that the lab starts: the shipped configuration, at other intervals if a scenario asks for them."""

from __future__ import annotations

import yaml

from tachograph_lab.checkout import root
from tachograph_lab.monitoring import with_intervals


def test_other_intervals_are_the_global_ones() -> None:
    """Those of a job stay, and a scrape may not take longer than its interval."""
    shipped = (root() / "prometheus/prometheus.yml").read_text(encoding="utf-8")
    before, after = (
        yaml.safe_load(shipped),
        yaml.safe_load(with_intervals(shipped, {"scrape": 2.0, "evaluation": 15.0})),
    )
    changed = {name: value for name, value in after["global"].items() if before["global"][name] != value}
    assert changed == {"scrape_interval": "2000ms", "scrape_timeout": "1600ms", "evaluation_interval": "15000ms"}
    assert after["scrape_configs"] == before["scrape_configs"]
    assert with_intervals(shipped, {}) == shipped
