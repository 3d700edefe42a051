"""What a program brings about on its GPU by its own fault: what the page and the log of the program say of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.hardware, pytest.mark.timeout(300)]

SCRIPT = """
import sys, time
import torch

mode, device = sys.argv[1], torch.device(sys.argv[2], 0)
WILD = 'extern "C" __global__ void wild(float* out) { out[1ull << 44] = 1.0f; }'
SPIN = '''extern "C" __global__ void spin(float* out) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begin < 50000000000ull);
    out[0] = 1.0f;
}'''

def fail():
    if mode == "wild":
        torch.cuda._compile_kernel(WILD, "wild")((1, 1, 1), (1, 1, 1), (out,))
    elif mode == "index":
        out[torch.tensor([1 << 20], device=device)] += 1
    elif mode == "memory":
        torch.empty(1 << 40, dtype=torch.uint8, device=device)
    elif mode == "spin":
        torch.cuda._compile_kernel(SPIN, "spin")((1, 1, 1), (1, 1, 1), (out,))
    torch.cuda.synchronize()  # where the program learns of it

out = torch.zeros(1024, device=device)
model = torch.nn.Linear(1024, 1024).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
until = time.monotonic() + 6
while True:
    loss = model(torch.randn(64, 1024, device=device)).square().mean()
    loss.backward()
    if time.monotonic() > until:
        fail()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
"""

CATEGORIES = {"wild": "software", "index": "software", "memory": "out_of_memory"}


def start(mode: str, exporter: Any, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start the script under `tachograph run`; what it says goes to a file of the mode's name."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "tachograph", "run", "--name", mode, *words, str(script), mode, "cuda"]
    with (folder / f"{mode}.log").open("wb") as log:
        environment = {**os.environ, **exporter.environment}
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def line_of(text: str) -> int:
    """Return the number of the script's line that holds a text."""
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("mode", CATEGORIES)
def test_a_failure_is_told_by_its_kind(mode: str, exporter: Any, tmp_path: Path) -> None:
    """The rank's last words and the log of the program have the same category; the GPU is not blamed."""
    began = time.time()
    assert start(mode, exporter, tmp_path).wait(120) != 0
    page = exporter.wait("tachograph_run_last_words_age_seconds", run=mode)
    words = page.all("tachograph_run_last_words_age_seconds", run=mode)[0][0]
    xids = page.all("tachograph_gpu_xid_info", gpu="0")
    log = tmp_path / f"{mode}.log"
    command = [sys.executable, "-m", "tachograph", "logs", "--json", str(log)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    print(mode, words, xids, log.read_text()[-3000:], said.stdout[:3000], said.stderr, f"{time.time() - began:.0f} s")
    assert words["category"] == CATEGORIES[mode]
    assert json.loads(said.stdout)["findings"][0]["category"] == CATEGORIES[mode]
    assert page.value("tachograph_gpu_up", gpu="0") == 1
    assert page.value("tachograph_train_failures_total", run=mode, category=CATEGORIES[mode]) == 1


@pytest.mark.usefixtures("cuda")
def test_a_kernel_that_does_not_end(exporter: Any, tmp_path: Path) -> None:
    """A rank that waits for its GPU is named with the line at which it waits, while its GPU is busy."""
    process = start("spin", exporter, tmp_path, "--hang-seconds", "20")
    try:
        page = exporter.wait("tachograph_run_hang_suspect_seconds", 90, run="spin")
        named = page.all("tachograph_run_hang_suspect_seconds", run="spin")[0][0]
        print(named, page.all("tachograph_gpu_utilization_ratio"), (tmp_path / "spin.log").read_text())
        assert f"train.py:{line_of('where the program learns of it')}" in named["where"]
        assert page.value("tachograph_gpu_utilization_ratio", gpu="0") > 0.9
    finally:
        process.kill()
        process.wait(60)
