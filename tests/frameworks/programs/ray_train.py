"""Ray Train: two workers under DDP, which Ray ends by force after every training; each with a Recorder of its own."""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path

import ray
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

HERE = str(Path(__file__).parent)
PASSED = ("TACHOGRAPH_SOCKET", "TACHOGRAPH_RUN", "TRUTH", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
RATE, FORWARD_SECONDS = 1e-3, 0.03


def loop(steps: int) -> None:
    """Train on one worker; Ray runs it in a thread of a process that hosts others later."""
    import torch
    from doors import ThreeLines
    from torch import nn
    from truth import Truth

    truth = Truth()
    torch.manual_seed(0)
    model = train.torch.prepare_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    truth.time_forward(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    door = ThreeLines("recorder")
    door.watch(model, optimizer)
    model.register_forward_pre_hook(lambda *_: time.sleep(FORWARD_SECONDS))
    for number in range(1, steps + 1):
        with door.step() as values:
            inputs = torch.randn(8, 64)
            loss = ((model(inputs) - inputs[:, :1]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values["loss"] = loss.detach()
        truth.rates.append(RATE)
        truth.step(loss.item())
        if number % 20 == 0:
            train.report({"loss": loss.item()})
    door.close()
    truth.write()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--door")  # there is one
    options = parser.parse_args()
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        object_store_memory=100_000_000,
        runtime_env={"env_vars": {**passed, "PYTHONPATH": HERE}},
    )
    trainer = TorchTrainer(
        partial(loop, options.steps),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=str(Path.cwd() / "ray"), name="r"),
    )
    try:
        trainer.fit()
    finally:
        ray.shutdown()


main()
