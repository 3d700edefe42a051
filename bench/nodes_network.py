"""A network of its own for bench/nodes.py: hosts with a name and an address each, on one bridge.

A host is a network namespace; the bench itself is the machine in the middle, which reaches all. Namespaces of networks,
mounts and processes are the bench's own (`unshare`), so the kernel removes every one of them with the last process,
however that ends, and nothing outside sees a bridge, an address or a mount.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tachograph.processes.die_with_parent import dying_with_parent

PROGRAMS = {"ip": "iproute2", "nft": "nftables", "unshare": "util-linux", "mount": "mount"}
"""The programs that are needed, and the Debian package of each."""

BRIDGE = "fabric"
SUBNET = "10.77.0"
OWN_ADDRESS = f"{SUBNET}.1"
FIRST = 10
"""The last number of the first host's address."""

TABLE = "inet lossy"


class NetworkError(Exception):
    """The network cannot be had here; the text says in one line why, and what to do."""


def check() -> None:
    """Raise NetworkError unless this user may make namespaces and the programs are there."""
    if os.geteuid() != 0:
        raise NetworkError("must be run as root: it makes network namespaces")
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        packages = " ".join(dict.fromkeys(PROGRAMS[name] for name in missing))
        raise NetworkError(f"{', '.join(missing)} not found: install {packages}")


def start_alone(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a Python program in namespaces of its own; all that it starts ends with it, and it with this process."""
    apart = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
    return subprocess.Popen(dying_with_parent([*apart, sys.executable, *words]))


class Network:
    """The hosts, from creation on; only within `start_alone`. Raises NetworkError."""

    def __init__(self, hosts: Sequence[str], folder: Path) -> None:
        self.address = {name: f"{SUBNET}.{FIRST + place}" for place, name in enumerate(hosts)}
        self._lossy: list[str] = []
        _do("mount", "-t", "tmpfs", "tmpfs", "/run")  # `ip netns` keeps names there
        names = folder / "hosts"
        lines = [f"{address} {name}" for name, address in self.address.items()]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]), encoding="utf-8")
        _do("mount", "--bind", str(names), "/etc/hosts")
        _do("ip", "link", "set", "lo", "up")
        _do("ip", "link", "add", BRIDGE, "type", "bridge")
        _do("ip", "address", "add", f"{OWN_ADDRESS}/24", "dev", BRIDGE)
        _do("ip", "link", "set", BRIDGE, "up")
        for name, address in self.address.items():
            _do("ip", "netns", "add", name)
            _do("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _do("ip", "link", "set", name, "master", BRIDGE, "up")
            _do("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _do("ip", "-n", name, "link", "set", device, "up")

    def within(self, host: str) -> list[str]:
        """Return the command that runs another one on a host, as the same process."""
        return ["ip", "netns", "exec", host]

    def cut(self, host: str) -> None:
        """Take down the switch port of a host."""
        _do("ip", "link", "set", host, "down")

    def join(self, host: str) -> None:
        """Bring the switch port of a host up again."""
        _do("ip", "link", "set", host, "up")

    def lose(self, host: str, percent: int, to: Sequence[str] = ()) -> None:
        """Lose so many of the packets that a host sends to some others, or to all; those to it still arrive.

        They are dropped where they arrive: a sender would notice a filter of its own.
        """
        chance = f"numgen random mod 100 < {percent} " if percent < 100 else ""
        rules = [
            f"add table {TABLE}",
            f"add chain {TABLE} in {{ type filter hook input priority 0; }}",
            f"add rule {TABLE} in ip saddr {self.address[host]} {chance}drop",
        ]
        self._lossy = [name for name in to or self.address if name != host]
        for receiver in self._lossy:
            _do(*self.within(receiver), "nft", "; ".join(rules))

    def mend(self) -> None:
        """Lose none any more."""
        for receiver in self._lossy:
            _do(*self.within(receiver), "nft", f"delete table {TABLE}")
        self._lossy = []


def mount_small_disk(folder: Path, megabytes: int) -> None:
    """Mount a disk of its own on a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _do("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))


def _do(*words: str) -> None:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise NetworkError(f"{' '.join(words)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
