"""The wait of a step from dumps of four ranks' Flight Recorders, of which rank 2 works 50 ms longer than the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.client.torch.nccl_run import PLAIN, Collective, figures

LATE = 2
OTHERS = (0, 1, 3)


def late(rank: int, time: float) -> float:
    """Return 50 ms for rank 2, always."""
    return 0.05 if rank == LATE else 0.0


@pytest.mark.parametrize("size", [2000, 20])
def test_the_late_rank_waits_least(size: int) -> None:
    """By 50 ms, beside transfers of 12 ms that all have; a ring of five steps shows the same."""
    waits = [own[-1] for own in figures(late, size=size)]
    assert waits[LATE] == pytest.approx(0.012)
    assert [waits[rank] for rank in OTHERS] == pytest.approx([0.062] * 3)


def test_a_ring_that_holds_no_whole_step_gives_no_figure() -> None:
    """Of the three collectives of a step one was always overwritten before it was read: absent, not less."""
    assert {wait for own in figures(late, size=3) for wait in own} == {None}


def test_collectives_without_a_length_give_no_figure() -> None:
    """On the rank whose recorder has none; the others have theirs."""
    shown = figures(late, untimed=(1,))
    assert set(shown[1]) == {None}
    assert shown[0][-1] == pytest.approx(0.062)


def test_figures_move_from_the_old_to_the_new() -> None:
    """From 60 s on a rank is late: within three readings all show it, and none ever shows what was at no time."""
    for rank, own in enumerate(figures(lambda rank, time: late(rank, time) * (time > 60), seconds=150)):
        known = [round(wait, 6) for wait in own if wait is not None]
        assert known == sorted(known)
        assert known[0] == pytest.approx(0.012)
        assert known[-1] == pytest.approx(0.012 if rank == LATE else 0.062)


@pytest.mark.parametrize("looks_every", [15.0, 60.0])
@pytest.mark.parametrize(("slow", "lasts"), [(8.0, 0.1), (2.0, 6.0)], ids=["one step", "some steps"])
def test_a_single_stall_is_not_seen(slow: float, lasts: float, looks_every: float) -> None:
    """However long a reading stays: of two in a row, one has little of it, and the lower one counts."""
    shown = figures(
        lambda rank, time: slow if rank == LATE and 200 < time < 200 + lasts else 0.0,
        [replace(one, compute=0.6) for one in PLAIN],
        seconds=350,
        looks_every=looks_every,
    )
    waits = [wait for own in shown for wait in own if wait is not None]
    assert len(waits) > 4 * 150
    assert max(waits) < 0.012 + 0.2 * 1.812


@pytest.mark.parametrize("looks_every", [15.0, 24.0])
@pytest.mark.parametrize("length", [4.0, 6.0, 10.0, 40.0])
def test_long_steps(length: float, looks_every: float) -> None:
    """A figure takes three steps that no earlier one has, and stays as long as that takes."""
    slow = (Collective(compute=length / 2), Collective("_all_gather_base", compute=length / 2))
    for rank, own in enumerate(figures(late, slow, seconds=40 * length, looks_every=looks_every)):
        shown = own[int(30 * length) :]
        assert shown == pytest.approx([0.008 if rank == LATE else 0.058] * len(shown))


def test_batches_of_sends_and_receives() -> None:
    """Their parts never get a length and never end; the batch is timed as one."""
    step = (Collective(), Collective("send", "pp", batch=True), Collective())
    waits = [own[-1] for own in figures(late, step)]
    assert waits[LATE] == pytest.approx(0.012)
    assert [waits[rank] for rank in OTHERS] == pytest.approx([0.062] * 3)


def test_two_groups_at_once() -> None:
    """Every other rank has at least the 50 ms more, also beside transfers of 60 ms that nobody waits for.

    No start of a collective is known, so nothing tells that two overlap: who waits for rank 2 in both has it twice.
    """
    tensor = Collective("all_reduce", "tp", ((0, 1), (2, 3)))
    data = Collective("_reduce_scatter_base", "dp", ((0, 2), (1, 3)), transfer=0.06, compute=0.0, aside=True)
    waits = [own[-1] for own in figures(late, (tensor, data, tensor, Collective(compute=0.1)))]
    assert None not in waits
    assert [waits[rank] - waits[LATE] for rank in OTHERS] == pytest.approx([0.1, 0.1, 0.05])  # type: ignore[operator]
