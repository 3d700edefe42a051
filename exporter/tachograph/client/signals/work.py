"""The work of a rank's completed steps: tokens, samples and FLOPs, as logged with each step, else as given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, isclose
from operator import itemgetter

from tachograph.catalog.train import WORK
from tachograph.client.core.steps import Step

TOKENS, SAMPLES, FLOPS = WORK.values()

WHOLE_RUN_STEPS = 20
"""Steps from the first one on that are each worth as much as was given for all ranks: one may be so by chance."""

Amounts = dict[str, float]
"""By wire key of a counter."""


class WorkCounters:
    """Counters of one rank; the sender thread takes what was logged, and reads.

    `per_step` is this rank's share, one `world_size`-th, of what was given for every step, and may get more entries;
    `per_token` has the FLOPs of one token. A step that logs an amount counts by that alone, once it is completed. FLOPs
    that it does not log follow its tokens, else its samples. `logged` is what steps logged so far.
    """

    def __init__(
        self,
        step: Step,
        per_step: Mapping[str, float] | None = None,
        per_token: Mapping[str, float] | None = None,
        world_size: int = 1,
    ) -> None:
        self.logged: Amounts = {}
        self._step = step
        self._per_step = {} if per_step is None else per_step
        self._per_token = per_token or {}
        self._world_size = world_size
        self._open: list[tuple[int, int, Amounts]] = []  # the step to wait for, the step it is of, amounts
        self._steps: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._shown: Amounts = {}
        self._like_whole_run: Amounts = {}

    def take(self, number: int, amounts: Amounts, *, late: bool) -> None:
        """Take what step `number` logged; of several times in one step the sum counts.

        What comes `late`, as the copy from a GPU does, is here during the next step at the earliest, and is counted
        with that one: else the counter would be a step behind at one moment and not at another, which a rate over a few
        steps takes for a change.
        """
        until = number + late
        if self._open and self._open[-1][:2] == (until, number):
            _add(self._open[-1][2], amounts)
        else:
            self._open.append((until, number, amounts))

    def logged_for_all(self) -> list[str]:
        """Return the keys of which every step so far, and enough of them, was worth what was given for all ranks."""
        return [key for key, steps in self._like_whole_run.items() if steps >= WHOLE_RUN_STEPS]

    def discard(self, number: int) -> None:
        """Forget what was logged with a step that ended with an exception: it begins anew, under the same number."""
        self._open = [one for one in self._open if one[1] != number]

    def metrics(self) -> Iterable[tuple[str, object]]:
        """Return the counters by wire key; absent while nothing is known of one."""
        self._count()
        for key in {**self._per_step, **self.logged}:
            unlogged = self._step.completed - self._steps.get(key, 0)
            total = unlogged * self._per_step.get(key, 0) + self.logged.get(key, 0)
            # Until what comes late is here, a step counts as given; where that is more, the counter waits.
            self._shown[key] = max(total, self._shown.get(key, 0))
            yield key, self._shown[key]

    def _count(self) -> None:
        completed = self._step.next
        due = [one for one in self._open if one[0] < completed]
        if due:
            self._open = [one for one in self._open if one[0] >= completed]
        for _, number, amounts in sorted(due, key=itemgetter(1)):
            self._compare(amounts)
            self._imply_flops(number, amounts)
            _add(self.logged, amounts)
            for key in amounts:
                if self._last.get(key) != number:
                    self._last[key] = number
                    self._steps[key] = self._steps.get(key, 0) + 1

    def _compare(self, amounts: Amounts) -> None:
        """Count the steps worth as much as was given for all ranks; who has logged anything else logs its own."""
        for key in amounts.keys() & self._per_step.keys():
            is_like = self._world_size > 1 and isclose(amounts[key], self._world_size * self._per_step[key])
            self._like_whole_run[key] = self._like_whole_run.get(key, 0) + (1 if is_like else -inf)

    def _imply_flops(self, number: int, amounts: Amounts) -> None:
        for base in (TOKENS, SAMPLES):
            if base in amounts:
                for key in (FLOPS, "hardware_flops_total"):
                    each = self._each(key, base)
                    if each is not None and key not in amounts and self._last.get(key) != number:
                        amounts[key] = each * amounts[base]

    def _each(self, key: str, base: str) -> float | None:
        """Return the FLOPs of one token or sample: as given, else those of a whole step over its tokens or samples."""
        if base == TOKENS and key in self._per_token:
            return self._per_token[key]
        if key in self._per_step and base in self._per_step:
            return self._per_step[key] / self._per_step[base]
        return None


def _add(totals: Amounts, amounts: Amounts) -> None:
    for key, amount in amounts.items():
        totals[key] = totals.get(key, 0) + amount
