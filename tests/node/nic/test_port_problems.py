"""What a node says of its network ports in `/api/node`, without a Prometheus to ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tachograph.node.app import Exporter
from tachograph.node.config import read_config
from tachograph.node.nic.port_reading import PortDetails, PortReading


class Ports:
    """A port that goes down, one that becomes slow and corrupts packets, and one that was never up."""

    def __init__(self) -> None:
        self.well = True
        self.errors = 0.0

    def take(self) -> list[PortReading]:
        """Return them now."""
        self.errors += 0.0 if self.well else 100.0  # every four seconds
        details = PortDetails(5e10 if self.well else 2.5e10, {"symbol": self.errors})
        return [
            PortReading("mlx5_0", "1", up=self.well),
            PortReading("mlx5_1", "1", up=True, details=details),
            PortReading("mlx5_2", "1", up=False),
        ]

    def trouble(self) -> str:
        """Return ""."""
        return ""


def test_ports_are_problems(tmp_path: Path, hand: Any) -> None:
    """Worst first, each with what helps; a port that was never up is none."""
    ports = Ports()
    config = read_config([f"--socket={tmp_path}/rank.sock"], {})
    exporter = Exporter(config, None, hand.clock, ports=ports)
    exporter.look_at_hardware()
    assert json.loads(exporter.api_node())["problems"] == []
    ports.well = False
    hand.turn(120.0, exporter.look_at_hardware)
    problems = json.loads(exporter.api_node())["problems"]
    assert [(each["kind"], each["urgent"], each["text"]) for each in problems] == [
        ("Port mlx5_0/1", True, "Down for 2 min, although it was in use."),
        ("Port mlx5_1/1", False, "Left with 50% of what it had within a day, or equal adapters have."),
        ("Port mlx5_1/1", False, "Corrupts 1,500 packets a minute."),
    ]
    assert all("runbooks/Nic" in each["remedy"] for each in problems)
    assert problems[0]["seconds"] == 120
