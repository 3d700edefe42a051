"""Each sink against its real library: W&B offline, MLflow and TensorBoard in a folder, OpenTelemetry over HTTP."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tachograph import extras
from tachograph.client.hello.identity import Identity
from tachograph.export.sinks.otlp import OtlpSink

Until = Callable[[Callable[[], Any]], Any]
WHO = Identity("llama", 5, 5, 8, 1, 0)
FRAME = {"loss": 2.5, "steps_total": 480, "phase_seconds_total/forward": 1.5, "phase_seconds_total/backward": 3.0}


def run(code: str, folder: Path, **environment: str) -> str:
    """Run code in a process of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=folder,
        env={**os.environ, **environment}, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_otlp_counters_and_gauges(receiver: Any, until: Until) -> None:
    """Prometheus' names, the label, monotonic sums for what only grows; run and rank belong to the resource."""
    sink = OtlpSink(WHO, f"{receiver.url}/v1/metrics", seconds=0.05)
    sink.write(1.0, 480, FRAME)

    def points() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for body in list(receiver.bodies):
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                attributes = {each.key: each.value for each in resource.resource.attributes}
                assert attributes["tachograph.run"].string_value == "llama"
                assert attributes["tachograph.rank"].int_value == 5
                found |= {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
        return found if len(found) == 3 else {}

    found = until(points)
    sink.close()
    assert found["tachograph_train_loss"].gauge.data_points[0].as_double == 2.5
    steps = found["tachograph_train_steps_total"].sum
    assert steps.is_monotonic
    assert steps.data_points[0].as_int == 480
    phases = found["tachograph_train_phase_seconds_total"]
    assert phases.unit == "s"
    seconds = {point.attributes[0].value.string_value: point.as_double for point in phases.sum.data_points}
    assert seconds == {"forward": 1.5, "backward": 3.0}
    assert {point.attributes[0].key for point in phases.sum.data_points} == {"phase"}


def test_otlp_is_silent_in_a_forked_child(receiver: Any, until: Until) -> None:
    """The SDK starts its thread again in every DataLoader worker: what that would send is the parent's, and old."""
    sink = OtlpSink(WHO, f"{receiver.url}/v1/metrics", seconds=60)
    sink.write(1.0, 480, FRAME)
    child = os.fork()
    if child == 0:
        sink._provider.force_flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert not receiver.bodies
    sink.close()
    assert until(lambda: receiver.bodies)


def test_otlp_without_a_collector_says_so_once(until: Until, caplog: pytest.LogCaptureFixture) -> None:
    """Ten exports that fail are one line in the training's log, not forty."""
    with caplog.at_level(logging.WARNING):
        sink = OtlpSink(WHO, "http://127.0.0.1:9/v1/metrics", seconds=0.05)
        sink.write(1.0, 480, FRAME)
        until(lambda: "does not reach its collector" in caplog.text)
        for _ in range(3):
            sink._provider.force_flush(1000)
        sink.close()
    said = [record for record in caplog.records if "does not reach its collector" in record.getMessage()]
    assert len(said) == 1


def test_otlp_without_the_sdk_says_what_to_install(tmp_path: Path) -> None:
    """A missing extra is one clear line, not a traceback from within."""
    code = """
        import sys
        sys.modules["opentelemetry.sdk.metrics"] = None
        from tachograph.export.sinks.otlp import OtlpSink
        try:
            OtlpSink(None)
        except ImportError as error:
            print(error)
    """
    assert extras.command("otlp") in run(code, tmp_path)


def test_mlflow_gets_finite_numbers_with_step_and_time(tmp_path: Path) -> None:
    """The active run's metrics hold what was written; NaN, which its stores refuse, is left out."""
    code = f"""
        import mlflow
        from tachograph.export.sinks.mlflow import MlflowSink
        with mlflow.start_run() as run:
            sink = MlflowSink(seconds=60)
            sink.write(1763690000.5, 480, {{**{FRAME!r}, "grad_norm": float("nan")}})
            sink.close()
        for key in ("tachograph/loss", "tachograph/grad_norm", "tachograph/phase_seconds_total/forward"):
            history = mlflow.MlflowClient().get_metric_history(run.info.run_id, key)
            print([(each.value, each.step, each.timestamp) for each in history])
    """
    shown = run(code, tmp_path, MLFLOW_TRACKING_URI=(tmp_path / "mlruns").as_uri(), MLFLOW_ALLOW_FILE_STORE="true")
    assert shown.splitlines() == ["[(2.5, 480, 1763690000500)]", "[]", "[(1.5, 480, 1763690000500)]"]


def test_mlflow_without_a_run_sends_nothing_and_says_so(tmp_path: Path) -> None:
    """Ranks other than 0 usually have no run: that is no error of theirs."""
    code = """
        import logging; logging.basicConfig(stream=__import__("sys").stdout)
        from tachograph.export.sinks.mlflow import MlflowSink
        sink = MlflowSink(seconds=60)
        sink.write(1.0, 1, {"loss": 1.0})
        sink.close()
    """
    assert "no MLflow run was active" in run(code, tmp_path)


def test_wandb_keeps_an_axis_of_its_own(tmp_path: Path) -> None:
    """The training code's own steps are not disturbed, whatever step the sink is at."""
    code = f"""
        import wandb
        from tachograph.export.sinks.wandb import WandbSink
        run = wandb.init(mode="offline", settings=wandb.Settings(silent=True, x_disable_stats=True))
        run.log({{"own": 1}}, step=1000)
        for _ in range(3):
            sink = WandbSink(seconds=60)
            sink.write(1.0, 480, {FRAME!r})
            sink.close()
        run.log({{"own": 2}}, step=1001)
        run.log({{"own": 3}}, step=1002)  # W&B takes the step before over
        import json
        print(json.dumps({{key: run.summary[key] for key in ("own", "tachograph/step", "tachograph/loss")}}))
        run.finish()
    """
    shown = run(code, tmp_path, WANDB_SILENT="true")
    assert json.loads(shown.splitlines()[-1]) == {"own": 2, "tachograph/step": 480, "tachograph/loss": 2.5}


@pytest.mark.slow
def test_wandb_without_a_run_sends_nothing(tmp_path: Path) -> None:
    """A rank that never called `wandb.init` is left alone: no login, no network, no word."""
    code = """
        from tachograph.export.sinks.wandb import WandbSink
        sink = WandbSink(seconds=60)
        sink.write(1.0, 1, {"loss": 1.0})
        sink.close()
    """
    assert run(code, tmp_path) == ""


def test_tensorboard_gets_every_number_with_step_and_time(tmp_path: Path) -> None:
    """TensorBoard itself reads what was written, NaN included."""
    code = f"""
        from tachograph.export.sinks.tensorboard import TensorBoardSink
        sink = TensorBoardSink("events", seconds=60)
        sink.write(1763690000.5, 480, {{**{FRAME!r}, "grad_norm": float("nan")}})
        sink.close()
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        seen = EventAccumulator("events").Reload()
        for key in ("tachograph/loss", "tachograph/grad_norm", "tachograph/phase_seconds_total/forward"):
            print([(each.value, each.step, each.wall_time) for each in seen.Scalars(key)])
    """
    at = "480, 1763690000.5)]"
    assert run(code, tmp_path).splitlines() == [f"[(2.5, {at}", f"[(nan, {at}", f"[(1.5, {at}"]


def test_tensorboard_says_what_to_install(tmp_path: Path) -> None:
    """As the other sinks do, and when it is made, not at the first frame."""
    code = """
        import importlib.util
        importlib.util.find_spec = lambda name: None
        from tachograph.export.sinks.tensorboard import TensorBoardSink
        try:
            TensorBoardSink("events")
        except ImportError as error:
            print(error)
    """
    assert extras.command("tensorboard") in run(code, tmp_path)


@pytest.mark.parametrize("module", ["wandb", "mlflow", "otlp", "mailbox", "tensorboard"])
def test_importing_a_sink_loads_no_library(module: str, tmp_path: Path) -> None:
    """A service that is not used is not imported."""
    code = f"""
        import sys
        import tachograph.export.sinks.{module}
        assert not {{"wandb", "mlflow", "opentelemetry.sdk", "tensorboard"}} & set(sys.modules)
    """
    run(code, tmp_path)
