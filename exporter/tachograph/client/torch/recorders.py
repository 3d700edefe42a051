"""PyTorch's Flight Recorders: which of them each process group's backends write to, and how each is read.

| backend | recorder | dumped by | counts |
|---|---|---|---|
| `gloo`, after PyTorch 2.8 | its own | `_dump_fr_trace` | as the group, from 1 |
| `nccl` up to 2.14, `nccl-legacy` | its own | `_dump_nccl_trace` | as the group, from 1 |
| `nccl` since 2.15, `nccl2`, `nccl-lazy`, others' | a hook | `_dump_fr_trace(backend=…)` | for itself, from 0 |

With `TORCH_DIST_USE_NCCL2=0` in the environment `nccl` is the former one in 2.15, too. `_dump_nccl_trace` is there in
any case; for the new one it has nothing.

A hook (`FlightRecorderHook`, attached by `init_process_group` and `new_group`) counts all operations of its group:
also sends and receives, and those that another backend of a mixed group carries out. Held against 2.15.0: its Python
sources, stubs and headers, and its hook on a made-up backend, as no GPU with it was at hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tachograph.client.torch.loaded_torch import in_use, loaded_torch

GLOO = "gloo"
LEGACY_NCCL = "nccl"

SELF_RECORDING = (GLOO, LEGACY_NCCL, "xccl")
"""Backends that record themselves, each with its own numbers of groups; all others share the numbers of the hooks."""

_SILENT = ("fake", "undefined")
"""Backends that carry out nothing."""

Dump = Mapping[str, Any]


def recorders_of(group: Any, configured: str) -> tuple[str, ...]:  # noqa: ANN401 - a torch.distributed.ProcessGroup
    """Return the recorders that a group's backends write to, those of accelerators first.

    `configured` is what `pg_backend_config` has for the group, as `cpu:gloo,cuda:nccl`. What `nccl` stands for is the
    backend's to say; where it cannot, the configured name is taken.
    """
    found: dict[str, None] = {}
    pairs = [pair.rpartition(":") for pair in configured.split(",") if pair]
    for device, _, backend in sorted(pairs, key=lambda pair: pair[0] == "cpu"):
        named = ""
        with suppress(Exception):  # another PyTorch may have no such call; a backend need not be there any more
            named = group._get_backend(loaded_torch().device(device)).name()
        found[named if isinstance(named, str) and named else backend] = None
    return tuple(each for each in found if each not in _SILENT)


def recorders_in_use() -> tuple[str, ...]:
    """Return the recorders that this process' groups write to, by name; none before `init_process_group`."""
    distributed = in_use("distributed")
    if distributed is None:
        return ()
    configured = list(distributed.distributed_c10d._world.pg_backend_config.items())
    return tuple(sorted({each for group, backends in configured for each in recorders_of(group, str(backends))}))


def numbering(recorder: str) -> str:
    """Return whose numbers of process groups a recorder has: its own, or those that all hooks share."""
    return recorder if recorder in SELF_RECORDING else "hooks"


def status(recorder: str) -> Dump | None:
    """Return a recorder's state without its entries, in 0.05 ms; None where this PyTorch has no such recorder."""
    native = _native()
    if recorder == LEGACY_NCCL:
        dump = getattr(native, "_dump_nccl_trace_json", None)
        return _json(dump(includeCollectives=False)) if dump is not None else None
    dump = getattr(native, "_dump_fr_trace_json", None)
    if dump is None:
        return None
    if recorder == GLOO:
        return _json(dump(includeCollectives=False))
    try:
        return _json(dump(includeCollectives=False, backend=recorder))
    except TypeError:  # before 2.15: one recorder, which is gloo's
        return None


def entries(recorder: str, *, lines: bool = False) -> Dump | None:
    """Return a recorder's state with its entries; None as above. Their `lines` would take most of a second."""
    native = _native()
    if recorder == LEGACY_NCCL:
        dump = getattr(native, "_dump_nccl_trace", None)
        if dump is None:
            return None
        try:
            return parse_pickle(dump(includeCollectives=True, includeStackTraces=lines))
        except TypeError:  # another PyTorch takes other arguments; JSON takes twice the time
            return _json(native._dump_nccl_trace_json(includeCollectives=True))
    dump = getattr(native, "_dump_fr_trace", None)
    if dump is None:
        return None
    chosen = {} if recorder == GLOO else {"backend": recorder}
    try:
        return parse_pickle(dump(includeCollectives=True, includeStackTraces=lines, **chosen))
    except TypeError:
        return None


def parse_pickle(data: bytes) -> Dump:
    """Read a dump in pickle's format, which holds plain values only: nothing in it can name a class or a function."""
    import io
    import pickle

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
            raise pickle.UnpicklingError(f"{module}.{name} in a dump")

    dump: Dump = Plain(io.BytesIO(data)).load()
    return dump


def _json(data: str | bytes) -> Dump:
    dump: Dump = json.loads(data)
    return dump


def _native() -> Any:  # noqa: ANN401 - a private module of PyTorch
    return getattr(getattr(loaded_torch(), "_C", None), "_distributed_c10d", None)
