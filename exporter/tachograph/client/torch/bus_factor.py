"""Bus factors: bytes that a collective moves over a rank's bus, to compare operations and world sizes.

The factors are those of nccl-tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). There `S` is
the whole buffer: of an all_gather the output, of a reduce_scatter the input. Here a payload is what the rank *gives*,
its input tensor: of an all_gather that is one n-th of `S`, so its factor is n - 1 where nccl-tests has (n - 1) / n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

_FACTORS: Mapping[str, Callable[[int], float]] = MappingProxyType({
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: ranks - 1,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "send_recv": lambda ranks: 1.0,
    "barrier": lambda ranks: 0.0,
})  # fmt: skip
"""Operation -> factor of the bytes that a rank gives; `other` has none, as it is unknown what it moves."""


def bus_factor(operation: str, ranks: int) -> float | None:
    """Return bytes over the bus for each byte given to `operation` among `ranks` ranks; None where it is not known.

    A world of one moves nothing: 0.
    """
    factor = _FACTORS.get(operation)
    if factor is None or ranks < 1:
        return None
    return 0.0 if ranks == 1 else factor(ranks)
