"""Preflight under four real ranks over gloo: one thing is wrong in each test; it is named, and nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.preflight.launched import FOLDER, RANKS, Launcher

pytestmark = [pytest.mark.slow, pytest.mark.torch]

RIVAL = "(while kill -0 $$ 2>/dev/null; do :; done) &\n"
"""A busy loop in a rank's own session, so that it takes of the rank's share of its CPU; it ends with the rank."""


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """Four ranks, and a checkpoint folder."""
    return Launcher(tmp_path)


@pytest.fixture
def mounted(launcher: Launcher) -> Iterator[Path]:
    """A small filesystem as the checkpoint folder; what tests do with it is undone."""
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", launcher.checkpoints]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no filesystem may be mounted here")
    yield launcher.checkpoints
    subprocess.run(["umount", launcher.checkpoints], check=True)


def found(report: dict[str, Any]) -> list[tuple[str, str, list[int]]]:
    return [(one["check"], one["severity"], one["ranks"]) for one in report["findings"]]


def states(report: dict[str, Any]) -> dict[str, str]:
    return {one["check"]: one["state"] for one in report["checks"]}


def test_healthy_ranks_have_no_finding(launcher: Launcher) -> None:
    """Every check that needs no GPU and no code of the user's is made."""
    textfile = launcher.folder / "preflight.prom"
    report = launcher.run(
        "--checkpoint-dir", launcher.checkpoints, "--parameters", "10M", "--textfile", textfile, "--checklist", "before"
    )
    assert found(report) == []
    made = {name for name, state in states(report).items() if state == "ok"}
    assert made == {
        "ranks", "versions", "variables", "rendezvous", "limits", "clocks", "checkpoints", "memory", "group", "compute",
        "memory-bandwidth", "collectives", "pairs",
    }  # fmt: skip
    assert report["ranks"] == RANKS
    lines = textfile.read_text().splitlines()
    assert "tachograph_preflight_passed 1.0" in lines
    assert sum(line.startswith("tachograph_preflight_compute_flops{") for line in lines) == RANKS
    assert sum(line.startswith("tachograph_preflight_pair_bandwidth_bytes_per_second{") for line in lines) == 6


def test_a_slow_rank_is_named(launcher: Launcher) -> None:
    """Alone with three others on a core; by its links and its memory it is not named once more."""
    first, second = sorted(os.sched_getaffinity(0))[:2] if len(os.sched_getaffinity(0)) > 1 else pytest.skip("one CPU")
    scripts = dict.fromkeys(range(RANKS), f"taskset -cp {second} $$ >/dev/null\n")
    scripts[2] = f"taskset -cp {first} $$ >/dev/null\n" + 3 * RIVAL
    report = launcher.run("--checkpoint-dir", launcher.checkpoints, scripts=scripts)
    assert found(report) == [("compute", "fail", [2])]


def test_a_slow_pair_is_named(launcher: Launcher) -> None:
    """Each of the two is fast with others: all that they send each other goes through a proxy that takes 20 ms."""
    if os.geteuid():
        pytest.skip("only root can have a network of its own")
    shim, proxy = launcher.shim("connect_shim"), launcher.folder / "proxy"
    scripts = {rank: f"export GLOO_SOCKET_IFNAME=lo:{rank}\n" for rank in range(RANKS)}
    for rank, other in ((1, 2), (2, 1)):
        scripts[rank] += f"export LD_PRELOAD={shim} CONNECT_SHIM_PEER=127.0.0.{10 + other} CONNECT_SHIM_PROXY={proxy}\n"
    around = [sys.executable, FOLDER / "slow_network.py", proxy, "0.02"]
    report = launcher.run("--checkpoint-dir", launcher.checkpoints, scripts=scripts, around=around)
    assert found(report) == [("pairs", "fail", [1, 2])]
    assert "the link between rank 1 and rank 2 is slow" in report["findings"][0]["what"]


def test_a_slow_link_with_every_partner_is_the_rank(launcher: Launcher) -> None:
    """Its own network is slow: it is named, none of its partners is."""
    if os.geteuid():
        pytest.skip("only root can have a network of its own")
    shim, proxy = launcher.shim("connect_shim"), launcher.folder / "proxy"
    preload = f"export LD_PRELOAD={shim} CONNECT_SHIM_PROXY={proxy} CONNECT_SHIM_PEER="
    scripts = {rank: f"export GLOO_SOCKET_IFNAME=lo:{rank}\n" for rank in range(RANKS)}
    for rank in (0, 1, 2):
        scripts[rank] += f"{preload}127.0.0.13\n"
    scripts[3] += f"{preload}127.0.0.10,127.0.0.11,127.0.0.12\n"
    around = [sys.executable, FOLDER / "slow_network.py", proxy, "0.02"]
    report = launcher.run(scripts=scripts, around=around)
    assert found(report) == [("pairs", "fail", [3])]
    assert "rank 3 is slow with every partner" in report["findings"][0]["what"]


def test_a_wrong_version_of_torch_is_named(launcher: Launcher) -> None:
    """One rank imports another installation: the same files, but for the version they give themselves."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    installed, other = Path(spec.origin).parent, launcher.folder / "other/torch"
    other.mkdir(parents=True)
    for path in installed.iterdir():
        if path.name not in ("version.py", "__pycache__"):
            (other / path.name).symlink_to(path)
    text = (installed / "version.py").read_text(encoding="utf-8")
    (other / "version.py").write_text(text.replace("__version__ = '", "__version__ = '1"), encoding="utf-8")
    report = launcher.run("--checkpoint-dir", launcher.checkpoints, scripts={1: f"export PYTHONPATH={other.parent}\n"})
    assert found(report) == [("versions", "fail", [1])]
    assert "rank 1 has torch 1" in report["findings"][0]["what"]


def test_a_full_disk_is_named(launcher: Launcher, mounted: Path) -> None:
    """There is nothing left to write to."""
    room = os.statvfs(mounted)
    (mounted / "old.pt").write_bytes(bytes(room.f_bavail * room.f_frsize))
    report = launcher.run("--checkpoint-dir", mounted)
    assert found(report) == [("checkpoints", "fail", [0])]
    assert "is full: 0 bytes free" in report["findings"][0]["what"]


def test_a_read_only_folder_is_named(launcher: Launcher, mounted: Path) -> None:
    """For root, too, who may write to any folder that can be written."""
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    report = launcher.run("--checkpoint-dir", mounted)
    assert found(report) == [("checkpoints", "fail", [0])]
    assert "is read-only" in report["findings"][0]["what"]


def test_a_wrong_clock_is_named(launcher: Launcher) -> None:
    """Ten seconds ahead on one rank."""
    script = f"export LD_PRELOAD={launcher.shim('clock_shim')} CLOCK_SHIM_SECONDS=10\n"
    report = launcher.run("--checkpoint-dir", launcher.checkpoints, scripts={3: script})
    assert found(report) == [("clocks", "fail", [3])]
    assert "the clock of rank 3 is 10.0 s ahead of the others'" in report["findings"][0]["what"]


def test_the_wrong_clock_of_rank_0_is_named(launcher: Launcher) -> None:
    """With which all others are compared first."""
    script = f"export LD_PRELOAD={launcher.shim('clock_shim')} CLOCK_SHIM_SECONDS=10\n"
    report = launcher.run("--only", "clocks", scripts={0: script})
    assert found(report) == [("clocks", "fail", [0])]


def test_a_model_that_does_not_fit_is_refused(launcher: Launcher) -> None:
    """On the memory of this machine; the term that is too much is named."""
    shape = ["--layers", "80", "--hidden", "8192", "--heads", "64", "--vocabulary", "128256", "--sequence", "4096"]
    report = launcher.run("--checkpoint-dir", launcher.checkpoints, "--checkpoint-size", "1M", *shape)
    assert found(report) == [("memory", "fail", [])]
    assert "the model does not fit: parameters take" in report["findings"][0]["what"]


def test_a_rank_that_hangs_is_named(launcher: Launcher) -> None:
    """At the limit, and the next check is made."""
    code = "import os, time\ndef loader():\n    time.sleep(1000 if os.environ['RANK'] == '2' else 0)\n    return []\n"
    (launcher.folder / "hanging.py").write_text(code, encoding="utf-8")
    around = ["env", f"PYTHONPATH={launcher.folder}"]
    arguments = ["--loader", "hanging:loader", "--model", "hanging:loader", "--limit", "3s", "--only", "loader,model"]
    report = launcher.run(*arguments, around=around)
    assert report["findings"][0]["what"] == "loader did not end within 3.00 s on rank 2"
    assert [(one["check"], one["severity"]) for one in report["findings"]][-1] == ("model", "fail")


def test_a_rank_that_stops_in_a_collective_is_named(launcher: Launcher) -> None:
    """Those that wait for it are not; what needs all ranks is left out from then on."""
    stop = f"(until grep -q 'collectives by size' {launcher.folder}/errors; do sleep 0.02; done; kill -STOP $$) &\n"
    arguments = ["--limit", "5s", "--only", "group,collectives,pairs"]
    report = launcher.run(*arguments, scripts={2: stop})
    assert [(one["check"], one["ranks"]) for one in report["findings"]] in (
        [("collectives", [2])], [("pairs", [2])],
    )  # fmt: skip
    assert "rank 2 stopped answering during" in report["findings"][0]["what"]


def test_what_is_wrong_on_one_of_two_nodes(launcher: Launcher) -> None:
    """Its folder is missing and its version another one: the node is named, and each node writes its own figures."""
    scripts = {}
    for rank in range(RANKS):
        node = launcher.folder / ("first" if rank < 2 else "second")
        node.mkdir(exist_ok=True)
        scripts[rank] = f"export NODE_NAME={node.name} LOCAL_RANK={rank % 2} LOCAL_WORLD_SIZE=2\ncd {node}\n"
    (launcher.folder / "first/checkpoints").mkdir()
    for rank in (2, 3):
        scripts[rank] += "export NCCL_ALGO=Tree\n"
    only = ["--only", "variables,checkpoints,memory-bandwidth,pairs,group"]
    report = launcher.run(*only, "--checkpoint-dir", "checkpoints", "--textfile", "preflight.prom", scripts=scripts)
    assert [one["what"] for one in report["findings"]] == [
        "node first has no NCCL_ALGO", "node second has NCCL_ALGO=Tree", "checkpoints does not exist on node second",
    ]  # fmt: skip
    assert report["findings"][2]["nodes"] == ["second"]
    for node, ranks in (("first", {"0", "1"}), ("second", {"2", "3"})):
        lines = (launcher.folder / node / "preflight.prom").read_text().splitlines()
        assert set(re.findall(r'memory_bandwidth\S+{rank="(\d)"', "\n".join(lines))) == ranks
        assert "tachograph_preflight_passed 0.0" in lines


def test_the_users_code_is_checked(launcher: Launcher) -> None:
    """A loader that is slow and deals out nothing, unequal shares, BatchNorm, and a parameter without gradient."""
    (launcher.folder / "job.py").write_text(JOB, encoding="utf-8")
    around = ["env", f"PYTHONPATH={launcher.folder}"]
    only = ["--only", "loader,model,group", "--step", "20ms"]
    report = launcher.run("--loader", "job:loader", "--model", "job:model", *only, around=around)
    texts = [one["what"] for one in report["findings"]]
    assert [one["check"] for one in report["findings"]] == ["loader"] * 3 + ["model"] * 2
    assert "training waits for data" in texts[0]
    assert texts[1] == "ranks have unequal shares of the data: 9 batches on rank 3, 8 batches on the others"
    assert texts[2] == "all ranks read the same batches"
    assert texts[3] == "1 BatchNorm layer would keep statistics of each rank alone: norm"
    assert texts[4] == "2 parameters get no gradient: unused.weight, unused.bias"


def test_right_code_has_no_finding(launcher: Launcher) -> None:
    """A DistributedSampler, SyncBatchNorm's layers, and gradients for all."""
    (launcher.folder / "job.py").write_text(JOB, encoding="utf-8")
    around = ["env", f"PYTHONPATH={launcher.folder}"]
    only = ["--only", "loader,model,group", "--step", "10s"]
    report = launcher.run("--loader", "job:good_loader", "--model", "job:good_model", *only, around=around)
    assert found(report) == []
    assert {name: state for name, state in states(report).items() if name in ("loader", "model")} == {
        "loader": "ok",
        "model": "ok",
    }


JOB = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Slow(Dataset):
    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((4,), float(index))

class Net(torch.nn.Module):
    def __init__(self, good):
        super().__init__()
        self.norm = torch.nn.LayerNorm(4) if good else torch.nn.BatchNorm1d(4)
        self.line = torch.nn.Linear(4, 4)
        if not good:
            self.unused = torch.nn.Linear(4, 4)
    def forward(self, batch):
        return self.line(self.norm(batch))

def loader():
    print("this is no JSON")
    os.write(1, b"nor this")
    return DataLoader(Slow(36 if os.environ["RANK"] == "3" else 32, 0.02), batch_size=4)

def good_loader():
    data = Slow(64, 0.0)
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data))

def model():
    return Net(False)

def good_model():
    return Net(True)
"""
