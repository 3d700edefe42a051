"""A slow, a stuck and a killed rank under each framework, as the shipped rules page them: the rank, and its phase.

Real processes, two ranks each, rank 1 with the fault, 35 s after its first step; real Prometheus and Alertmanager at
5 s. Four trainings at once; all of it takes ten minutes on two quiet cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.frameworks.alarms import FAULTS, FAULTY_RANK, AlarmStack, Job, Played
from tests.frameworks.training import Case

pytestmark = [pytest.mark.frameworks, pytest.mark.e2e, pytest.mark.timeout(3000)]

AT_ONCE = 4
LONG = "--steps 40000 --save_every 400 --evaluate_every 400"
LIGHTNING = f"--accumulate 2 {LONG}"
TRAININGS = {
    "hf-ddp": Case("hf_trainer.py", LONG, ranks=2),
    "deepspeed-zero1": Case("deepspeed_zero.py", f"--stage 1 --groups 2 {LONG}", ranks=2),
    "deepspeed-zero3": Case("deepspeed_zero.py", f"--stage 3 --sub_group_size 5000 {LONG}", ranks=2),
    "lightning-run": Case("lightning_fit.py", LIGHTNING, ranks=2),
    "lightning-callback": Case("lightning_fit.py", LIGHTNING, ranks=2, door="callback"),
    "torchtitan-fsdp2": Case("torchtitan_train.py", LONG, ranks=2),
}
JOBS = {
    f"{name}-{kind.replace(' ', '-')}": Job(case, fault)
    for kind, fault in FAULTS.items()
    for name, case in TRAININGS.items()
    if not (case.program == "torchtitan_train.py" and fault.phase == "data")  # its data set is not ours
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Mapping[str, Played]]:
    """Every training of the tests that are to run, played to its alert."""
    wanted = {item.callspec.params["name"] for item in request.session.items if "played" in item.fixturenames}
    with AlarmStack(tmp_path_factory.mktemp("stack")) as stack:
        yield {each.name: each for each in stack.play({n: JOBS[n] for n in JOBS if n in wanted}, AT_ONCE)}


@pytest.mark.parametrize("name", JOBS)
def test_the_rank_and_its_phase_are_named(played: Mapping[str, Played], name: str) -> None:
    """The alert of the fault names rank 1 and where it is, no alert names another rank, and nothing else is sent."""
    one, fault = played[name], JOBS[name].fault
    assert fault is not None
    assert one.onset is not None, one.child.tail(15)
    said = [alarm for alarm in one.alarms() if alarm.last > one.onset]
    answers = [alarm for alarm in said if alarm.alert == fault.alert]
    assert [alarm.rank for alarm in answers[:1]] == [FAULTY_RANK], said
    if fault.kind != "killed":
        assert answers[0].phase == fault.phase, said
    assert {alarm.rank for alarm in said} <= {FAULTY_RANK, None}, said
    assert {alarm.alert for alarm in one.alarms()} <= {fault.alert, *fault.allowed}, one.alarms()
    print(f"{name}: {answers[0].alert} after {answers[0].first - one.onset:.0f} s")
