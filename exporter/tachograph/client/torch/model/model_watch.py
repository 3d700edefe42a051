"""Measurements of a model and its optimizer, through the optimizer's own hooks.

Nothing here waits for a device: numbers leave it by asynchronous copies and are read at a later step. Passes over the
whole model are looks, and looks are rationed: after each one the next is put off until, spread over the steps between,
it costs the training thread less than 10 microseconds a step, or 0.003 % of the step where that is more. What a user
gave an interval for is done at exactly that interval, for ranks must do it at the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from tachograph.client.core.contained import contained
from tachograph.client.core.counters import Counter
from tachograph.client.core.notice import notice, raised_by_signal
from tachograph.client.signals.invariants import Invariants
from tachograph.client.torch.loaded_torch import in_use, loaded_torch
from tachograph.client.torch.model.activations import Activations
from tachograph.client.torch.model.checksum import Checksum
from tachograph.client.torch.model.device_readings import DeviceReadings
from tachograph.client.torch.model.layer_memory import LayerMemory
from tachograph.client.torch.model.layer_norms import LayerNorms
from tachograph.client.torch.model.layers import unwrapped
from tachograph.client.torch.model.matmul_check import MatmulCheck
from tachograph.client.torch.model.scaler import ScalerWatch
from tachograph.client.torch.model.update_ratio import UpdateRatio

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Module, Optimizer

LOOK_SECONDS_PER_STEP = 1e-5
LOOK_SHARE = 3e-5
LEAST_STEPS_BETWEEN, MOST_STEPS_BETWEEN = 10, 10_000

OPTIMIZER_STEP = "optimizer_step"
OPTIMIZER_STEP_EVERY = 16

_COUNTS = ("last_epoch", "last_batch_iteration")
"""Attributes in which PyTorch's schedulers and DeepSpeed's keep their step count."""


class Part(Protocol):
    """Something that is done at every optimizer step; `step` counts those made since the watch began."""

    def before(self, step: int, optimizer: Optimizer) -> None:
        """Work before the optimizer's step."""

    def after(self, step: int, optimizer: Optimizer) -> None:
        """Work after it."""


class SampledPart(Protocol):
    """Something that is done at sampled steps only."""

    def arm(self) -> None:
        """Prepare, as the step before the sampled one ends."""

    def look(self, optimizer: Optimizer) -> None:
        """Work, as the optimizer is about to make the sampled step."""


class ModelWatch:
    """Watches one model, its optimizer, schedule and scaler; each may be missing, and nothing is kept alive."""

    def __init__(
        self,
        model: object = None,
        optimizer: object = None,
        *,
        scheduler: object = None,
        scaler: object = None,
        layers: int = 0,
        activations: bool = False,
        update_every: int = 0,
        checksum_every: int = 0,
        memory_layers: bool = False,
        rank: int = 0,
        coordinates: Mapping[str, int] | None = None,
        invariants: Invariants,
        dropped: Counter,
    ) -> None:
        self._model: Any = None if model is None else ref(model)
        self._optimizer = unwrapped(optimizer)
        self._scheduler = scheduler
        self._scaler = scaler
        self._layers = layers if rank == 0 else 0
        self._activations = activations and rank == 0
        self._memory_layers = memory_layers and rank == 0
        self._update_every = update_every
        self._checksum_every = checksum_every
        self._coordinates = coordinates
        self._invariants = invariants
        self._dropped = dropped
        self._readings = DeviceReadings(dropped)
        self._sources: list[Any] = []
        self._parts: list[Part] = []
        self._looks: list[SampledPart] = []
        self._steps = 0
        self._ration = Ration()
        self._compiling: Callable[[], bool] = bool
        self._capturing: Callable[[], bool] = bool

    def attach(self) -> None:
        """Hang the hooks; on the training thread, once. Raises what PyTorch raises where it refuses."""
        optimizer, self._optimizer = self._optimizer, None  # from here on the optimizer holds us, not we it
        scheduler, self._scheduler = self._scheduler, None
        scaler, self._scaler = self._scaler, None
        if scheduler is not None:
            self._sources.append(ScheduleWatch(scheduler))
        if optimizer is None:
            return
        torch: Any = loaded_torch()
        self._compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
        self._parts.append(OptimizerStep(self._invariants))
        if scaler is not None:
            self._keep(ScalerWatch(scaler, self._readings))
        model = self._model() if self._model is not None else None
        if model is not None:
            self._watch_model(model, optimizer)
        self._sources += self._looks
        if in_use("cuda") is not None:
            self._capturing = torch.cuda.is_current_stream_capturing
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield everything known by wire key; to be asked by the sender thread."""
        for source in self._sources:
            yield from source.metrics()

    def _watch_model(self, model: Module, optimizer: Optimizer) -> None:
        if self._layers > 0:
            self._looks.append(LayerNorms(model, self._layers, self._readings))
        if (self._activations or self._memory_layers) and _is_compiled(model):
            notice("compiled", "the model is compiled: activations and memory of its layers are not measured")
        else:
            if self._activations:
                self._looks.append(Activations(model, self._readings))
            if self._memory_layers:
                self._looks.append(LayerMemory(model))
        if self._update_every > 0:
            self._keep(UpdateRatio(self._update_every, self._readings))
        if self._checksum_every > 0:
            checksum = Checksum(model, self._checksum_every, self._readings, self._invariants, self._coordinates)
            if checksum.left_out:
                notice(
                    "checksum",
                    f"{checksum.left_out} parameters are sharded, differ by design, and are left out of the checksum",
                )
            self._parts.append(checksum)
            device = next((one.device for _, one in model.named_parameters()), None)
            if device is not None:
                self._parts.append(MatmulCheck(device, self._checksum_every, self._readings, self._invariants))

    def _keep(self, part: UpdateRatio | ScalerWatch) -> None:
        self._parts.append(part)
        self._sources.append(part)

    @contained
    def _before(self, optimizer: Any, arguments: object, keywords: object) -> None:  # noqa: ANN401
        if self._compiling() or self._capturing():
            return
        for part in self._parts:
            try:
                part.before(self._steps, optimizer)
            except Exception as error:  # noqa: BLE001 - see _give_up
                self._give_up(part, error)
        if self._steps == self._ration.next and self._looks:
            began = perf_counter()
            for look in self._looks:
                try:
                    look.look(optimizer)
                except Exception as error:  # noqa: BLE001 - see _give_up
                    self._give_up(look, error)
            now = perf_counter()
            in_hooks = sum(getattr(look, "seconds", 0.0) for look in self._looks)
            self._ration.spent(self._steps, now - began + in_hooks, now)

    @contained
    def _after(self, optimizer: Any, arguments: object, keywords: object) -> None:  # noqa: ANN401
        if self._compiling() or self._capturing():
            return
        self._steps += 1
        for part in self._parts:
            try:
                part.after(self._steps, optimizer)
            except Exception as error:  # noqa: BLE001 - see _give_up
                self._give_up(part, error)
        if self._steps == self._ration.next:
            for look in self._looks:
                try:
                    look.arm()
                except Exception as error:  # noqa: BLE001 - see _give_up
                    self._give_up(look, error)
        self._readings.poll()

    def _give_up(self, part: object, error: Exception) -> None:
        """Leave out for good what PyTorch, or an odd model, refused: it costs its readings, never the step."""
        if raised_by_signal(error):
            raise error
        self._parts = [one for one in self._parts if one is not part]
        self._looks = [one for one in self._looks if one is not part]
        self._sources = [one for one in self._sources if one is not part]
        self._dropped.count += 1
        notice(type(part).__name__, f"{type(part).__name__} failed and is no longer measured", error)


class Ration:
    """The schedule of looks, so that they stay within their share of the training thread's time."""

    def __init__(self) -> None:
        self.next = 1
        self._last: tuple[int, float] | None = None

    def spent(self, step: int, seconds: float, now: float) -> None:
        """Note that the look at `step` took `seconds` and ended at `now`."""
        pace = (now - self._last[1]) / (step - self._last[0]) if self._last is not None else 0.0
        allowed = max(LOOK_SECONDS_PER_STEP, LOOK_SHARE * pace)
        self._last = (step, now)
        self.next = step + int(min(max(seconds / allowed, LEAST_STEPS_BETWEEN), MOST_STEPS_BETWEEN))


class ScheduleWatch:
    """Reads the count from the sender thread: plain attributes, on the host."""

    def __init__(self, scheduler: object) -> None:
        inner = getattr(scheduler, "scheduler", None)  # Accelerate wraps it
        self._scheduler = ref(scheduler if inner is None else inner)

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield `schedule_step`; nothing for a schedule that is gone or keeps no count."""
        scheduler = self._scheduler()
        for name in _COUNTS:
            count = getattr(scheduler, name, None)
            if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
                yield "schedule_step", count
                return


class OptimizerStep:
    """The optimizer's own count of its steps as an invariant: a rank that restored an older state has another one."""

    def __init__(self, invariants: Invariants) -> None:
        self._invariants = invariants

    def before(self, step: int, optimizer: Optimizer) -> None:
        """Do nothing before a step."""

    def after(self, step: int, optimizer: Optimizer) -> None:
        """Read the count of the first parameter that has one, every 16 steps; not where it lies on a GPU."""
        if step % OPTIMIZER_STEP_EVERY:
            return
        states: Iterable[dict[str, Any]] = optimizer.state.values()
        count = next((state["step"] for state in states if "step" in state), None)
        if count is not None and getattr(count, "is_cpu", isinstance(count, int)):
            self._invariants.set(OPTIMIZER_STEP, int(count), step)


def _is_compiled(model: Any) -> bool:  # noqa: ANN401
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for _, module in model.named_modules()
    )
