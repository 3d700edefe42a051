"""Captures: recorded without a trace of the machine, replayed to the same samples as the library they came from."""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tachograph.__main__ import main
from tachograph.node.driver.call_recorder import CallRecorder, Disguise
from tachograph.node.exposition import TEXT, render
from tachograph.node.gpu.worker_protocol import LineReader, NodeReading
from tachograph.node.samples import Sample
from tachograph.node.shown_gpus import shown
from tachograph_lab.fake_nvml import capture_replay

pytestmark = pytest.mark.usefixtures("wide")

CAPTURES = Path(__file__).parents[2] / "captures"
REPLAY = capture_replay.__file__
MADE_UP = "made-up-h100__580.95.05"
REGENERATE = bool(os.environ.get("TACHOGRAPH_REGENERATE"))
OWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|16500000000\d\d")
"""UUIDs, and the serial numbers of the made-up library."""

LOST, UNKNOWN, NO_PERMISSION, NOT_SUPPORTED = 15, 999, 4, 3
HEAD = '{"format": 1, "gpu": "x", "driver": "1", "calls": [\n'


def capture(environment: Mapping[str, str], out: Path) -> Path:
    """Record what a process with this environment sees of NVML."""
    command = [sys.executable, "-m", "tachograph", "capture", "--out", str(out), "--seconds", "0.2"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith(f"{out}:")
    return out


def replay(path: Path, *times: float) -> NodeReading:
    """Return the last of the collections made from a capture at these times."""
    done = subprocess.run(
        [sys.executable, REPLAY, str(path)],
        input="".join(f"{now}\n" for now in times),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    reader = LineReader()
    return [reader.read(line) for line in done.stdout.splitlines()][-1]


def samples(collection: NodeReading) -> dict[tuple[str, ...], float]:
    """Return a collection's samples without what a capture makes up."""
    found = collection.samples()
    return {(each.metric.name, *(OWN.sub("…", label) for label in each.labels)): each.value for each in found}


def told(collection: NodeReading) -> dict[str, Any]:
    """Return the rest of a collection, without what a capture makes up."""
    rest = {
        "collectors": collection.collectors,
        "reason": collection.reason,
        "failures": collection.all_failures(),
        "notes": collection.all_notes(),
        "processes": {gpu.identity.index: len(gpu.pids) for gpu in collection.gpus},
    }
    found: dict[str, Any] = json.loads(OWN.sub("…", json.dumps(rest)))
    return found


def healthy(fake: Any) -> None:
    """Change nothing."""


def ailing(fake: Any) -> None:
    """One GPU lost, readings that are not there, not permitted or failing, MIG, processes, numbers at their ends."""
    fake.gpus[3].error = LOST
    fake.fail("power", NOT_SUPPORTED, 1)
    fake.fail("fields", NOT_SUPPORTED, 2)
    fake.fail("gpm_metrics", UNKNOWN - 1, 4)
    fake.fail("processes", NO_PERMISSION, 1)
    fake.field_error(0, 83, NOT_SUPPORTED)
    fake.field(5, 83, 2**64 - 1)
    fake.gpm(0, 2, float("nan"))
    fake.gpm_error(1, 2, NOT_SUPPORTED)
    fake.gpus[7].gpm = 0
    fake.gpus[0].process_id = 4242
    fake.add_mig(6, 1)


@pytest.mark.parametrize("condition", [healthy, ailing])
def test_a_replayed_capture_gives_the_samples_of_the_library(
    fake: Any, stepper: Any, tmp_path: Path, condition: Any
) -> None:
    """At pynvml's level and at the library's the collector sees the same, in health and in sickness."""
    condition(fake)
    path = capture(fake.environment(), tmp_path / "capture.json")
    collector = stepper(fake.environment())
    for now in (0, 1):
        direct = collector.at(now).collection
    again = replay(path, 0, 1)
    first, second = samples(direct), samples(again)
    assert first.keys() == second.keys()
    assert first == pytest.approx(second, rel=0, abs=0, nan_ok=True)
    assert told(direct) == told(again)
    assert len(first) > 300


def test_what_moves_is_recorded_as_it_moved(fake: Any, tmp_path: Path) -> None:
    """Each collection has its own numbers, so that a counter grows in the replay too, and then stands still."""
    fake.state.live = 1
    fake.state.count = 1
    path = capture(fake.environment(), tmp_path / "capture.json")
    energy = [
        samples(replay(path, *range(last)))["tachograph_gpu_energy_joules_total", "0", "GPU-…"] for last in (1, 2, 9)
    ]
    assert energy == sorted(set(energy)), "it never stands still while the recording lasts"
    assert samples(replay(path, *range(10)))["tachograph_gpu_energy_joules_total", "0", "GPU-…"] == energy[-1]


def test_activity_is_recorded_of_a_driver_that_takes_longer_than_the_recording(fake: Any, tmp_path: Path) -> None:
    """It is what happened between two collections: there are two, though the first outlasts the time asked for."""
    fake.state.count = 1
    fake.block(20)
    path = capture(fake.environment(), tmp_path / "capture.json")
    assert "tachograph_gpu_sm_active_cycles_total" in {name for name, *_ in samples(replay(path, 0, 1))}


def test_nothing_of_the_machine_is_in_a_capture(fake: Any, tmp_path: Path) -> None:
    """UUIDs, pids and the host's name are not in the file, and made-up ones stand for the same thing throughout."""
    for index in range(8):
        fake.gpus[index].uuid = f"GPU-b850f46d-d5ea-c752-ddf3-c6453e44d3f{index}".encode()
        fake.gpus[index].process_id = 314159
    text = capture(fake.environment(), tmp_path / "capture.json").read_text()
    assert "c752" not in text
    assert "314159" not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    gpus = replay(tmp_path / "capture.json", 0).gpus
    assert [gpu.identity.uuid for gpu in gpus] == [f"GPU-fa4e0000-0000-4000-8000-{index:012x}" for index in range(8)]
    assert [gpu.pids for gpu in gpus] == [(1000,)] * 8


def test_a_made_up_number_is_always_the_same() -> None:
    """Two boards stay two, and one stays one."""
    disguise = Disguise()
    first, second = disguise.serial("1323720026331", 0), disguise.serial("1323720026332", 1)
    assert first == disguise.serial("1323720026331", 2) != second
    assert "13237200" not in first + second
    uuid = "b850f46d-d5ea-c752-ddf3-c6453e44d3f7"
    assert disguise.text(f"MIG-GPU-{uuid}/1/0") == f"MIG-{disguise.text('GPU-' + uuid)}/1/0" != f"MIG-GPU-{uuid}/1/0"
    assert disguise.pid(1) == disguise.pid(1) != disguise.pid(2)


def test_a_serial_number_is_disguised_in_a_call() -> None:
    """The caller gets the answer unchanged, the recording gets it without identities."""

    class Driver:
        NVMLError = pynvml.NVMLError

        def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802 - NVML's name
            return ctypes.cast(0x1000 + index, pynvml.c_nvmlDevice_t)

        def nvmlDeviceGetSerial(self, gpu: Any) -> str:  # noqa: N802 - NVML's name
            return "1323720026331"

    recorder = CallRecorder(Driver())
    assert recorder.nvmlDeviceGetSerial(recorder.nvmlDeviceGetHandleByIndex(6)) == "1323720026331"
    _, call = recorder.calls()
    assert call == {"call": "nvmlDeviceGetSerial", "arguments": ["gpu 6"], "result": "1650000000006"}


def test_the_file_is_named_after_gpu_and_driver(fake: Any, tmp_path: Path) -> None:
    """Without --out the name says what it is."""
    command = [sys.executable, "-m", "tachograph", "capture", "--seconds", "0.2"]
    environment = {**os.environ, **fake.environment()}
    fake.state.count = 1
    subprocess.run(command, env=environment, check=True, capture_output=True, cwd=tmp_path, timeout=60)
    assert [path.name for path in tmp_path.glob("*.json")] == ["nvidia-h100-80gb-hbm3__580.95.05.json"]


@pytest.mark.parametrize(
    ("arguments", "gpus", "words"),
    [
        ((), None, "no NVIDIA driver: libnvidia-ml.so.1 is not found; run this on a machine with"),
        ((), 0, "the driver shows no GPU"),
        (("--seconds=0.2", "--out=/no/such/folder/x.json"), 1, "cannot write the capture: "),
    ],
)
def test_where_no_capture_can_be_made(fake: Any, arguments: tuple[str, ...], gpus: int | None, words: str) -> None:
    """No driver, no GPU or no writable file: one line with the reason, status 1, no traceback."""
    environment = dict(os.environ)
    if gpus is not None:
        fake.state.count = gpus
        environment |= fake.environment()
    command = [sys.executable, "-m", "tachograph", "capture", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tachograph capture: {words}")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon", "99999"])
def test_an_impossible_duration_is_refused(seconds: str) -> None:
    """A mistake of the user's ends with status 2."""
    with pytest.raises(SystemExit) as end:
        main(["capture", f"--seconds={seconds}"])
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "not JSON"),
        (HEAD + '{"call": "nvmlInit", "arguments": [], "result": nul}\n]}\n', 2, "not JSON"),
        ("[]", 1, 'expected an object with "format": 1'),
        ('{"format": 7, "calls": []}', 1, 'expected an object with "format": 1'),
        ('{"format": 1, "calls": []}', 1, 'expected a list of "calls"'),
        ('{"format": 1, "calls": 3}', 1, 'expected a list of "calls"'),
        (HEAD + '{"call": "nvmlInit", "arguments": [], "result": null},\n7\n]}\n', 3, "a call is not an object"),
        (HEAD + '{"call": "nvmlGuess", "arguments": [], "result": 1}\n]}\n', 2, "call 'nvmlGuess' is not a function"),
        (HEAD + '{"arguments": [], "result": 1}\n]}\n', 2, "call None is not a function"),
        (HEAD + '{"call": "nvmlInit", "result": 1}\n]}\n', 2, "arguments are not a list"),
        (HEAD + '{"call": "nvmlInit", "arguments": []}\n]}\n', 2, "expected one of result and error"),
        (HEAD + '{"call": "nvmlInit", "arguments": [],\n"result": 1, "error": 3}\n]}\n', 2, "expected one of result"),
        (HEAD + '\n{"call": "nvmlInit", "arguments": [], "error": true}\n]}\n', 3, "error True is not a positive"),
        (HEAD + '{"call": "nvmlInit", "arguments": [], "error": 0}\n]}\n', 2, "error 0 is not a positive number"),
    ],
)  # fmt: skip
def test_a_malformed_capture_is_refused(tmp_path: Path, text: str, line: int, words: str) -> None:
    """A capture that cannot be replayed is named, with the line of its first fault."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(capture_replay.CaptureError) as raised:
        capture_replay.load(path)
    assert str(raised.value).startswith(f"{path}:{line}: {words}")


def scrape(path: Path) -> list[Sample]:
    """Return the samples of a capture, after three collections."""
    return replay(path, 0, 1, 2).samples()


def names() -> list[str]:
    """Return the captures there are."""
    return sorted(path.stem for path in CAPTURES.glob("*.json")) or [MADE_UP]


@pytest.mark.parametrize("name", names())
def test_golden_scrape(name: str, fake: Any) -> None:
    """The samples of each capture are unchanged; TACHOGRAPH_REGENERATE=1 rewrites them: read the diff."""
    path = CAPTURES / f"{name}.json"
    golden = path.with_suffix(".prom")
    if REGENERATE and name == MADE_UP:
        fake.state.count = 2
        capture(fake.environment(), path)
    text = render(scrape(path), TEXT)
    if REGENERATE:
        golden.write_bytes(text)
    assert text.decode() == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", names())
def test_a_capture_keeps_the_budget(name: str) -> None:
    """Unasked, no GPU of any capture has more than 40 series, and no series is there twice."""
    found = scrape(CAPTURES / f"{name}.json")
    assert max(Counter((sample.metric, sample.labels) for sample in found).values()) == 1
    assert max(Counter(sample.labels[0] for sample in shown(found)).values()) <= 40


@pytest.mark.parametrize("name", names())
def test_promtool_has_nothing_to_say(name: str, programs: Mapping[str, Path]) -> None:
    """`promtool check metrics` of both generations is silent about each golden scrape."""
    done = subprocess.run(
        [programs["promtool"], "check", "metrics"],
        input=(CAPTURES / f"{name}.prom").read_bytes(),
        capture_output=True,
        check=False,
        timeout=90,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
