"""What generation takes in an iteration, and from when on that is known, from frames of a loop that generates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tachograph.node.ranks.iterations import Iterations
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.series import RankSeries

STEPS = 4
STEP_SECONDS = 1.5


class Loop:
    """Four steps after each generation; a frame each second, as a client sends them."""

    def __init__(self) -> None:
        self.series = RankSeries(Limits(), Counter())
        self.iterations = Iterations()
        self.generated = self.rewarded = self._since_frame = 0.0
        self._in_phase = 0.0
        self.steps = 0

    def passes(self, seconds: float, phase: str) -> None:
        """Have time pass in a phase, with its frames."""
        self._in_phase = 0.0
        while seconds > 0:
            part = min(seconds, 1.0 - self._since_frame)
            seconds -= part
            self._since_frame += part
            self._in_phase += part
            self.generated += part * (phase == "generate")
            self.rewarded += part * (phase == "reward")
            if self._since_frame >= 1.0:
                self._since_frame = 0.0
                self.shows(phase)

    def shows(self, phase: str) -> None:
        """Send a frame."""
        spent = {"generate": self.generated, "reward": self.rewarded} if self.generated else {}
        self.series.take({"steps_total": self.steps, "phase_seconds_total": {"forward": 1.0, **spent}})
        self.iterations.take(self.series, phase, self._in_phase)

    def iterates(self, generates: float, rewards: float = 0.0, waits: float = 0.0, step: float = STEP_SECONDS) -> None:
        """Generate, wait for those that do so for longer, and make four steps."""
        self.passes(generates, "generate")
        self.passes(rewards, "reward")
        self.passes(waits, "collective")
        for _ in range(STEPS):
            self.passes(step, "backward")
            self.steps += 1

    @property
    def shown(self) -> dict[str, float]:
        """The recent seconds per step, by phase."""
        return self.series.gauges.get("recent_phase_seconds", {})


@pytest.mark.parametrize(("generates", "waits"), [(60.0, 0.0), (60.0, 30.0), (2.0, 5.0), (300.0, 0.3)])
def test_what_generation_takes_per_step_is_shown(generates: float, waits: float) -> None:
    """However long it takes, and though ranks wait for each other within it; its waits are not its own."""
    loop = Loop()
    for _ in range(5):
        loop.iterates(generates, rewards=4.0, waits=waits)
    assert loop.shown == pytest.approx({"generate": generates / STEPS, "reward": 4.0 / STEPS}, rel=0.05)
    loop.passes(100, "generate")
    assert loop.shown["generate"] == pytest.approx(generates / STEPS, rel=0.05), "one that is under way says nothing"


def test_steps_may_be_made_between_two_frames() -> None:
    """Each frame finds the rank generating, and the next iteration; still none is merged with another."""
    loop = Loop()
    for _ in range(10):
        loop.iterates(6.4, step=0.1)
    for _ in range(7):
        loop.iterates(30.4, step=0.1)
    assert loop.shown["generate"] == pytest.approx(30.4 / STEPS, rel=0.05)


def test_one_long_generation_is_no_habit() -> None:
    """The median of the last ten iterations is shown."""
    loop = Loop()
    for seconds in (10, 10, 300, 10, 10, 10):
        loop.iterates(seconds)
    assert loop.shown["generate"] == pytest.approx(10 / STEPS)


def test_a_loop_that_generates_no_more_shows_nothing() -> None:
    """After five times an iteration's steps; another iteration begins anew."""
    loop = Loop()
    for _ in range(12):
        loop.iterates(10)
    for _ in range(5 * STEPS - 2):
        loop.passes(STEP_SECONDS, "backward")
        loop.steps += 1
    assert loop.shown
    for _ in range(6):
        loop.passes(STEP_SECONDS, "backward")
        loop.steps += 1
    assert loop.shown == {}
    loop.iterates(10)
    assert loop.shown == {}


def test_a_loop_that_does_not_generate_shows_nothing() -> None:
    """Nor before five iterations."""
    loop = Loop()
    for _ in range(50):
        loop.passes(STEP_SECONDS, "backward")
        loop.steps += 1
    assert loop.shown == {}
    for _ in range(4):
        loop.iterates(10)
        assert loop.shown == {}


@pytest.mark.parametrize(
    ("lengths", "known_from"),
    [
        ([60] * 8, 5),
        ([40, 20, 30, 50, 25, 60, 35], 5),
        ([1, 2, 4, 8, 16, 32, 64, 128, 256, 480], None),
        ([2, 60, 5, 300, 20, 480, 1, 90] * 3, 20),
    ],
)
def test_how_long_generation_takes_is_known(lengths: Sequence[float], known_from: int | None) -> None:
    """After five iterations if they are alike, after twenty if they are not."""
    loop, found = Loop(), None
    for number, seconds in enumerate(lengths, start=1):
        loop.iterates(seconds)
        if found is None and loop.iterations.are_known:
            found = number
    assert found == known_from
