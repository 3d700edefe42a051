"""What a real node_exporter says of its collectors, and that the rules watch those which they read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tachograph_lab.demo.stack import NODE_COLLECTORS
from tachograph_lab.monitoring import get
from tachograph_lab.processes import Children, answers, free_port

ROOT = Path(__file__).resolve().parents[2]
SUCCESS = re.compile(r'^node_scrape_collector_success\{collector="infiniband"\} (\d)$', re.MULTILINE)


@pytest.mark.parametrize("programs", ["bookworm"], indirect=True)
def test_one_port_that_cannot_be_read_costs_the_collector(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """It then shows no port at all, and gives 0 – as it does on a node without InfiniBand, which is no fault."""
    sysfs = tmp_path / "class/infiniband"
    for device in ("mlx5_0", "mlx5_1"):
        port = sysfs / device / "ports/1"
        (port / "counters").mkdir(parents=True)
        files = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
        files |= {"../../hca_type": "MT4129", "../../fw_ver": "28.40", "../../board_id": "MT_1"}
        for name, text in files.items():
            (port / name).write_text(text + "\n")
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}/metrics"
    arguments = (f"--path.sysfs={tmp_path}", "--collector.disable-defaults", "--collector.infiniband")
    with Children(tmp_path) as children:
        children.start("node_exporter", [programs["node_exporter"], *arguments, f"--web.listen-address={address}"])
        children.running[0].wait_until(lambda: answers(url), 20)
        assert SUCCESS.findall(get(url)) == ["1"]
        assert get(url).count("node_infiniband_state_id{") == 2
        (sysfs / "mlx5_1/ports/1/rate").write_text("N/A\n")
        assert SUCCESS.findall(get(url)) == ["0"]
        assert "node_infiniband_" not in get(url)
        shutil.rmtree(sysfs)
        assert SUCCESS.findall(get(url)) == ["0"]


def test_the_collectors_that_rules_read_are_watched() -> None:
    """NodeCollectorFailed looks at what the lab switches on for the rules."""
    macro: str = yaml.safe_load((ROOT / "prometheus/macros.yml").read_text(encoding="utf-8"))["collectors"]
    watched = macro.partition('"')[2].partition('"')[0].split("|")
    assert sorted(watched) == sorted(NODE_COLLECTORS)
