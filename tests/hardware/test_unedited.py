"""A script that nobody edited, under `tachograph run` on a GPU: its numbers are right, and nothing waits for it."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.hardware, pytest.mark.timeout(400)]

STEPS = 100
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")

SCRIPT = """
import collections, json, sys, time
import torch
from torch.profiler import ProfilerActivity, profile

steps, device = int(sys.argv[1]), torch.device(sys.argv[2], 0)
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)], torch.nn.Linear(1024, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = torch.utils.data.TensorDataset(torch.randn(64 * 16, 1024))
scaler = torch.amp.GradScaler(device.type)
losses = torch.zeros(8 * steps, device=device)

def train(number, first):
    loader = iter(())
    for step in range(first, first + number):
        total = 0
        for _ in range(2):
            batch = next(loader, None)
            if batch is None:
                loader = iter(torch.utils.data.DataLoader(rows, batch_size=64))
                batch = next(loader)
            with torch.autocast(device.type, torch.float16):
                loss = model(batch[0].to(device, non_blocking=True)).square().mean()
            scaler.scale(loss / 2).backward()
            total = total + loss.detach() / 2
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses[step] = total
    return first + number

done = train(steps, 0)
activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
with profile(activities=activities) as seen:
    done = train(steps, done)
counts = collections.Counter(event.name for event in seen.events() if event.name.startswith("cuda"))
for _ in range(30):  # for the last frames to have what the steps showed
    done = train(5, done)
    time.sleep(0.1)
print(json.dumps({"counts": counts, "losses": losses[:done].tolist(), "steps": done}))
"""


def run(words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *words], env=environment, stdout=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> Any:
    try:
        out, _ = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


@pytest.mark.usefixtures("cuda")
def test_nothing_waits_and_the_loss_is_right(exporter: Any, tmp_path: Path) -> None:
    """Mixed precision, accumulation, clipping: as many waiting calls as without us, and the loss to the last digits."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, **exporter.environment}
    alone = finished(run([str(script), str(STEPS), "cuda"], {**os.environ}))
    process = run(["-m", "tachograph", "run", "--name", "unedited", str(script), str(STEPS), "cuda"], environment)
    pages = []
    while process.poll() is None:
        page = exporter.wait("tachograph_rank_up", 60)
        if page.all("tachograph_train_loss", run="unedited"):
            pages.append(page)
    under = finished(process)
    waits = [{name: told["counts"].get(name, 0) for name in WAITS} for told in (alone, under)]
    print({"without": waits[0], "with": waits[1], "calls": collections.Counter(under["counts"]).most_common(6)})
    assert under["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    assert waits[1] == waits[0]
    shown = pages[-1].value("tachograph_train_loss", run="unedited")
    print(f"loss shown {shown}, of the last steps {under['losses'][-20:]}")
    assert any(shown == pytest.approx(loss, rel=1e-3) for loss in under["losses"][-60:])
    assert exporter.page().value("tachograph_train_steps_total", run="unedited") == under["steps"]
    assert exporter.page().value("tachograph_train_batches_total", run="unedited") == 2 * under["steps"]
