"""Figures of a run for screens: where the time of its steps goes, its saves, its layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tachograph.catalog import index as catalog
from tachograph.diagnosis import step_parts
from tachograph.node.ranks.conclusions.lateness import phases
from tachograph.node.ranks.conclusions.saves import RunSaves
from tachograph.node.ranks.conclusions.view import RunView

_OF_LAYERS = (
    catalog.TRAIN_LAYER_GRAD_NORM,
    catalog.TRAIN_LAYER_GRAD_RATIO,
    catalog.TRAIN_LAYER_ACTIVATION_RMS,
    catalog.TRAIN_LAYER_ACTIVATION_ZERO,
    catalog.TRAIN_LAYER_MEMORY_PEAK,
)


@dataclass(frozen=True)
class Layer:
    """A layer of the model, as the rank sends it that looks at them; None is what it does not send."""

    layer: str
    grad_norm: float | None
    grad_ratio: float | None
    activation_rms: float | None
    zero_ratio: float | None
    memory_peak_bytes: float | None


def wait_seconds(view: RunView) -> float | None:
    """Return what the median rank waits for the others in each step; None where a rank has just stood still."""
    waits = view.waits
    return median(waits.values()) if waits and not any(rank.stood_still for rank in view.running) else None


def parts_seconds(view: RunView) -> dict[str, float]:
    """Return what the median rank's step goes into, of a loop that generates."""
    spent_by = phases(view)
    names = dict.fromkeys(name for each in spent_by.values() for name in each)
    spent = {name: median(each.get(name, 0.0) for each in spent_by.values()) for name in names}
    return step_parts(spent | ({"collective": median(view.waits.values())} if view.waits else {}))


def saving_seconds(view: RunView) -> float | None:
    """Return for how long a save has been under way."""
    saving = (rank.phase_seconds(view.now) or 0.0 for rank in view.running if rank.phase == "checkpoint")
    return max(saving, default=None)


def checkpoint_seconds(view: RunView, saves: RunSaves) -> float | None:
    """Return how old the newest checkpoint is that can be restored; without steps, the newest that was reported."""
    saved = [rank.saved_at for rank in view.states if rank.saved_at is not None]
    if not saved:
        return None
    last = saves.restorable
    return max(0.0, view.now - (max(saved) if last is None else last.at))


def layers(view: RunView) -> Sequence[Layer]:
    """Return the layers of the first rank that sends some, the one furthest above its usual norm first."""
    for rank in view.running:
        of_each: list[Mapping[str, float]] = [rank.series.gauges.get(one.key, {}) for one in _OF_LAYERS]
        if names := dict.fromkeys(name for values in of_each for name in values):
            found = [Layer(name, *(values.get(name) for values in of_each)) for name in names]
            return sorted(found, key=_how_usual)
    return ()


def _how_usual(layer: Layer) -> float:
    """Return the place of a layer: one that is not finite comes before all others, one without a past after them."""
    ratio = layer.grad_ratio
    return 1.0 if ratio is None else -ratio if math.isfinite(ratio) else -math.inf
