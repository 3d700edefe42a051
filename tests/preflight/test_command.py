"""`tachograph preflight` as a user calls it, on one node without a launcher."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.preflight import options, textfile
from tachograph.preflight.checklists import BY_HAND, ITEMS, answered
from tachograph.preflight.command import CHECKS
from tachograph.preflight.finding import Measurement
from tests.schemas import conforms

pytestmark = pytest.mark.usefixtures("wide")

ROOT = Path(__file__).parents[2]
NAMES = [check.name for check in CHECKS]


def preflight(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tachograph", "preflight", *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "MASTER_"))}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100, env=clean | environment, cwd="/"
    )


def test_a_healthy_node_passes_without_torch(tmp_path: Path) -> None:
    """Everything that needs neither PyTorch nor ranks; the progress is on stderr."""
    file = tmp_path / "preflight.prom"
    done = preflight(
        "--no-torch", "--json", "--checkpoint-dir", tmp_path, "--probe-size", "8M", "--parameters", "1M", "--checklist",
        "before", "--textfile", file,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = conforms("preflight", done.stdout)
    assert (found["version"], found["state"], found["findings"], found["ranks"]) == (1, "ok", [], None)
    states = {one["check"]: one["state"] for one in found["checks"]}
    assert list(states) == NAMES
    assert {name for name, state in states.items() if state == "ok"} == {
        "versions", "variables", "rendezvous", "limits", "checkpoints", "memory",
    }  # fmt: skip
    assert done.stderr.splitlines()[0] == f"preflight: 1 of {len(NAMES)}, software alike on all ranks"
    assert {one["state"] for one in found["checklist"]} == {"ok", "skipped", BY_HAND}
    text = file.read_text()
    assert '\ntachograph_preflight_checkpoint_write_bytes_per_second{local_rank="0"} ' in text
    assert "\ntachograph_preflight_passed 1.0\n" in text


def test_what_is_wrong_is_said_with_what_to_do(tmp_path: Path) -> None:
    """Status 1, one line for the finding and one for the remedy."""
    done = preflight(
        "--no-torch", "--only", "checkpoints,variables", "--checkpoint-dir", tmp_path / "none", NCCL_SOCKET_IFNAM="eth0"
    )
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    wrong = [line.strip() for line in lines if "WRONG" in line]
    assert wrong[0].startswith("WRONG: NCCL_SOCKET_IFNAM on ")
    assert wrong[1].startswith(f"WRONG: {tmp_path}/none does not exist on node ")
    assert "create it, or mount what it is on" in lines[-2]
    assert lines[-1] == "2 things are wrong, 2 checks made, 0 skipped"


def test_a_hung_folder_ends_at_the_limit(tmp_path: Path) -> None:
    """With which the probe is given up, as for a server that is lost."""
    done = preflight("--no-torch", "--json", "--only", "checkpoints", "--checkpoint-dir", tmp_path, "--limit", "1ms")
    assert done.returncode == 1
    (found,) = conforms("preflight", done.stdout)["findings"]
    assert "did not end within" in found["what"] or "does not answer" in found["what"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--only", "gpu"], "--only: no check 'gpu': expected some of versions, "),
        (["--probe-size", "many"], "--probe-size: 'many' is not a size: write 256M or 1.5T"),
        (["--limit", "20"], "--limit: '20' is not a duration: write 20m, 90s or 1h30m"),
        (["--parameters", "-7B"], "--parameters: expected one argument"),
        (["--loader", "train.py"], "--loader: 'train.py': expected MODULE:FUNCTION"),
        (["--slower", "0.1"], "--slower: '0.1' is not a share: write 10%"),
        (["--gpus", "0"], "--gpus: '0': expected a whole number of 1 or more"),
        (["--zero", "4"], "--zero: 4: expected one of 0, 1, 2, 3"),
        (["--chec", "x"], "unknown option --chec"),
    ],
)
def test_wrong_arguments_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], why: str) -> None:
    """With status 2; another rank than 0 says nothing."""
    for quiet in (False, True):
        with pytest.raises(SystemExit) as end:
            options.parse(arguments, NAMES, quiet=quiet)
        assert end.value.code == 2
        out, errors = capsys.readouterr()
        assert out == ""
        assert errors.startswith("" if quiet else f"tachograph preflight: {why}")
        assert errors.count("\n") == (not quiet)


def test_a_launcher_that_cannot_be_is_one_line() -> None:
    """Numbers that do not fit, and no address to meet at."""
    done = preflight("--only", "versions", RANK="4", WORLD_SIZE="4")
    assert (done.returncode, done.stderr) == (2, "tachograph preflight: RANK=4 is not below WORLD_SIZE=4\n")


def test_a_node_may_be_checked_alone_under_a_launcher() -> None:
    """As in an init container, which has the variables of its pod and nobody to meet."""
    done = preflight("--alone", "--no-torch", "--only", "clocks,versions", RANK="3", WORLD_SIZE="4", MASTER_ADDR="x")
    assert done.returncode == 0
    assert "start it under torchrun" in done.stdout


def test_a_rank_without_torch_says_so_under_a_launcher(tmp_path: Path) -> None:
    """It cannot meet the others; where PyTorch is not wanted, the first rank of a node checks it."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    done = preflight("--only", "versions", RANK="3", WORLD_SIZE="4", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "tachograph preflight: rank 3 cannot meet the others: PyTorch cannot be imported: libc"
    )
    assert done.stderr.count("\n") == 1
    done = preflight("--only", "versions", "--no-torch", RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_sizes_are_read() -> None:
    """In powers of 1,024, parameters in powers of 1,000."""
    given = options.parse(
        ["--probe-size", "1.5GiB", "--parameters", "7b", "--limit", "2m", "--slower", "5%", "--skip", "model,loader"],
        NAMES, quiet=False,
    )  # fmt: skip
    assert (given.probe_size, given.parameters, given.limit, given.slower) == (1.5 * 2**30, 7e9, 120.0, 0.05)
    assert given.skip == ("model", "loader")


def test_the_examples_are_ones_that_run() -> None:
    """Of the document and of the help."""
    document = (ROOT / "docs/preflight.md").read_text(encoding="utf-8")
    found = re.findall(r"tachograph preflight([^|\n]*)", document + options.EPILOG.replace("\\\n", ""))
    lines = [line for line in found if not line.startswith("`")]
    assert len(lines) >= 10
    for line in lines:
        options.parse(shlex.split(line, comments=True), NAMES, quiet=False)
    assert set(re.findall(r"^\| `([a-z-]+)`", document, re.MULTILINE)) >= {*NAMES} - {"group"}


def test_every_check_of_a_checklist_exists() -> None:
    """And every check but the rank's arrival is on one."""
    named = {name for items in ITEMS.values() for item in items for name in item.checks}
    assert named == {*NAMES, "ranks"}
    assert set(ITEMS) == set(options.CHECKLISTS)
    states = dict.fromkeys(NAMES, "ok") | {"gpus": "fail", "pairs": "skipped", "collectives": "warn"}
    found = {item.text: state for state, item in answered("long-run", states)}
    assert found["No memory repair is pending, no link is degraded"] == "fail"
    assert found["Somebody is on call, and knows the runbooks"] == BY_HAND
    assert {item.checks: state for state, item in answered("scaling-up", states)}["pairs", "collectives"] == "warn"


def test_the_textfile_is_one_that_promtool_would_take(tmp_path: Path) -> None:
    """Each family once, with help and type, labels escaped; a missing folder is an error."""
    measured = [
        Measurement("compute_flops", 1e12, 0, (("device", 'c"u\\da'),)),
        Measurement("bus_bandwidth_bytes_per_second", 5e9, 0, (("op", "all_reduce"), ("bytes", "8192"))),
    ]
    textfile.write(str(tmp_path / "p.prom"), measured, passed=False, now=5.0)
    lines = (tmp_path / "p.prom").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'tachograph_preflight_compute_flops{local_rank="0",device="c\\"u\\\\da"} 1000000000000.0',
        'tachograph_preflight_bus_bandwidth_bytes_per_second{local_rank="0",op="all_reduce",bytes="8192"} 5000000000.0',
        "tachograph_preflight_passed 0.0",
        "tachograph_preflight_timestamp_seconds 5.0",
    ]
    assert sum(line.startswith("# TYPE") for line in lines) == sum(line.startswith("# HELP") for line in lines) == 4
    assert (tmp_path / "p.prom").stat().st_mode & 0o777 == 0o644
    with pytest.raises(OSError, match="No such file"):
        textfile.write(str(tmp_path / "none/p.prom"), measured, passed=True, now=5.0)
    assert [path.name for path in tmp_path.iterdir()] == ["p.prom"]


def test_a_textfile_goes_through_a_link_and_in_place_of_no_device(tmp_path: Path) -> None:
    """Root could put a file in the place of /dev/null, or of what /dev/stdout is."""
    (tmp_path / "link").symlink_to("p.prom")
    textfile.write(str(tmp_path / "link"), [], passed=True, now=5.0)
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("fifo")
    for name in ("fifo", "device"):
        with pytest.raises(OSError, match="not a regular file"):
            textfile.write(str(tmp_path / name), [], passed=True, now=5.0)
    assert (tmp_path / "fifo").is_fifo()
    assert (tmp_path / "device").is_symlink()


def test_a_closed_output_ends_it_quietly() -> None:
    """As in `tachograph preflight | head -n 1`."""
    command = [sys.executable, "-m", "tachograph", "preflight", "--no-torch", "--only", "versions,limits,rendezvous"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
        assert done.stdout
        assert done.stderr
        done.stdout.close()
        assert [line for line in done.stderr.read().splitlines() if not line.startswith("preflight: ")] == []
    assert done.returncode == 141


def test_it_fits_a_terminal(tmp_path: Path, fits: Callable[..., None]) -> None:
    """What is wrong, what to do, and a checklist."""
    flags = ("--no-torch", "--checklist", "scaling-up", "--checkpoint-dir", tmp_path / "none", "--limit", "5s")
    fits(lambda: print(preflight(*flags, NCCL_SOCKET_IFNAM="eth0").stdout))
