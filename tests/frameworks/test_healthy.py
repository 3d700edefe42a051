"""Thirty healthy trainings, each to its end and three minutes past it: no page and no ticket for any of them.

Every framework and every door, with evaluations and checkpoints as often as each second, against the real Prometheus
and Alertmanager with the shipped rules at 5 s. Four trainings at once: half an hour on two cores, so `make
test-frameworks` leaves it to `make healthy-frameworks`. It uses both environments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.frameworks.alarms import AlarmStack, Job, Played
from tests.frameworks.training import Case

pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(7200)]

AT_ONCE = 4
VISION = Path(__file__).parents[2] / ".venv-vision/bin/python"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
ALONE = {"YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": "settings"}
ZERO, LIGHTNING, TRAINER, TITAN = "--steps 700", "--accumulate 2 --steps 500", "--steps 600", "--steps 120"
TRAININGS = {
    "zero0": Case("deepspeed_zero.py", f"--stage 0 --groups 2 {ZERO}", ranks=1),
    "zero1": Case("deepspeed_zero.py", f"--stage 1 {ZERO}", ranks=2),
    "zero1-two-groups": Case("deepspeed_zero.py", f"--stage 1 --groups 2 {ZERO}", ranks=2),
    "zero1-bf16": Case("deepspeed_zero.py", f"--stage 1 --groups 2 --bf16 {ZERO}", ranks=2),
    "zero2": Case("deepspeed_zero.py", f"--stage 2 {ZERO}", ranks=2),
    "zero3": Case("deepspeed_zero.py", f"--stage 3 {ZERO}", ranks=2),
    "zero3-sub-groups": Case("deepspeed_zero.py", f"--stage 3 --sub_group_size 5000 {ZERO}", ranks=2),
    "zero-recorder": Case("deepspeed_zero.py", f"--stage 1 --groups 2 {ZERO}", ranks=2, door="recorder"),
    "lightning": Case("lightning_fit.py", LIGHTNING),
    "lightning-ddp": Case("lightning_fit.py", LIGHTNING, ranks=2),
    "lightning-callback": Case("lightning_fit.py", LIGHTNING, door="callback"),
    "lightning-callback-ddp": Case("lightning_fit.py", LIGHTNING, ranks=2, door="callback"),
    "lightning-gan": Case("lightning_fit.py", "--gan --steps 700"),
    "lightning-callback-gan": Case("lightning_fit.py", "--gan --steps 700", door="callback"),
    "fabric": Case("fabric_loop.py", "--steps 1500"),
    "trainer": Case("hf_trainer.py", TRAINER),
    "trainer-ddp": Case("hf_trainer.py", TRAINER, ranks=2),
    "trainer-lora": Case("hf_trainer.py", f"--lora {TRAINER}"),
    "trainer-attached": Case("hf_trainer.py", TRAINER, door="attached"),
    "trainer-callback-ddp": Case("hf_trainer.py", TRAINER, ranks=2, door="callback"),
    "sft": Case("trl_train.py", "--steps 500", environment=OFFLINE),
    "dpo": Case("trl_train.py", "--method dpo --steps 300", environment=OFFLINE),
    "grpo": Case("trl_train.py", "--method grpo --steps 150", environment=OFFLINE),
    "sentences": Case("sentence_transformers_train.py", "--steps 1000", environment=OFFLINE),
    "accelerate": Case("accelerate_loop.py", "--epochs 20"),
    "ray": Case("ray_train.py", "--steps 1200", workers=2, door="recorder"),
    "torchtitan": Case("torchtitan_train.py", TITAN, ranks=1),
    "torchtitan-fsdp2": Case("torchtitan_train.py", TITAN, ranks=2),
    "composer": Case("composer_fit.py", "--steps 700", python=VISION),
    "yolo": Case("ultralytics_train.py", "--epochs 20", python=VISION, environment=ALONE),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Mapping[str, Played]]:
    """Every training of the tests that are to run, to its end and three minutes past it."""
    wanted = {item.callspec.params["name"] for item in request.session.items if "played" in item.fixturenames}
    jobs = {name: Job(case) for name, case in TRAININGS.items() if name in wanted}
    with AlarmStack(tmp_path_factory.mktemp("stack")) as stack:
        yield {each.name: each for each in stack.play(jobs, AT_ONCE)}


@pytest.mark.parametrize("name", TRAININGS)
def test_nobody_is_called(played: Mapping[str, Played], name: str) -> None:
    """It trains to its end, every rank of it is shown, and nothing but info is said of its run until then and after."""
    one = played[name]
    assert one.child.status == 0, one.child.tail(15)
    assert one.alarms() == []
    assert one.ranks == {*map(str, TRAININGS[name].recorded_ranks)}
