"""Faults injected while a job runs."""

from __future__ import annotations

import threading
from pathlib import Path

from tachograph_lab.demo.fault_injection import HANG, SLOW, SPIKE, FaultControl, InjectedFault, RankFaults


def test_a_fault_holds_for_its_rank_until_healed(tmp_path: Path) -> None:
    """A rank has the faults injected into it or into all ranks, from its next poll until they are healed."""
    control = FaultControl(tmp_path / "control.json")
    ranks = [RankFaults(control.path, rank) for rank in range(2)]
    for own in ranks:
        own.poll()
        assert own.get(SLOW) is None
    control.inject(InjectedFault(SLOW, rank=1, share=0.25))
    control.inject(InjectedFault(SPIKE))
    for own in ranks:
        own.poll()
    assert [own.get(SLOW) for own in ranks] == [None, InjectedFault(SLOW, rank=1, share=0.25)]
    assert all(own.get(SPIKE) for own in ranks)
    control.heal(SLOW)
    ranks[1].poll()
    assert ranks[1].get(SLOW) is None
    assert ranks[1].get(SPIKE) is not None


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    """A poll without a change costs one stat: the faults read before are kept."""
    control = FaultControl(tmp_path / "control.json")
    control.inject(InjectedFault(SPIKE))
    own = RankFaults(control.path, 0)
    own.poll()
    before = own.get(SPIKE)
    own.poll()
    assert own.get(SPIKE) is before


def test_a_hang_ends_when_healed(tmp_path: Path) -> None:
    """`hang` blocks the rank that has the fault, and only until it is healed."""
    control = FaultControl(tmp_path / "control.json")
    control.inject(InjectedFault(HANG, rank=3))
    RankFaults(control.path, 2).hang()
    stuck = threading.Thread(target=RankFaults(control.path, 3).hang, daemon=True)
    stuck.start()
    stuck.join(0.2)
    assert stuck.is_alive()
    control.heal(HANG)
    stuck.join(60)
    assert not stuck.is_alive()


def test_a_job_without_a_control_file_has_no_faults() -> None:
    """Without a file there is no fault and no wait."""
    own = RankFaults(None, 0)
    own.hang()
    assert own.get(HANG) is None
