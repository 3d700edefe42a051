"""A function of the user's own code, and what can be said of a batch that it gives."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tachograph.preflight.finding import FAIL, Facts, PreflightFinding, Untyped
from tachograph.preflight.site import PreflightSite


class UserCodeError(Exception):
    """The user's function cannot be had, or failed; the text says why."""


def call(named: str) -> Untyped:
    """Return what `MODULE:FUNCTION` returns, the module found from this folder on; raise UserCodeError."""
    module, _, function = named.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), function)()
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise UserCodeError(f"{named}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from error


def without_problems(
    facts: Mapping[int, Facts], site: PreflightSite
) -> tuple[dict[int, Facts], list[PreflightFinding]]:
    """Return the facts of the ranks whose `problem` is empty, and a finding for each problem with its ranks."""
    broken: dict[str, list[int]] = {}
    for rank, one in facts.items():
        if one["problem"]:
            broken.setdefault(one["problem"], []).append(rank)
    findings = [
        PreflightFinding(FAIL, f"on {site.who(ranks)} {problem}", "", tuple(ranks)) for problem, ranks in broken.items()
    ]
    return {rank: one for rank, one in facts.items() if not one["problem"]}, findings


def tensors(value: Untyped, depth: int = 0) -> Iterator[Untyped]:
    """Yield the tensors in a batch or an output, however nested."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 5:
        return
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors(one, depth + 1)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one, depth + 1)


def digest(batch: Untyped) -> str:
    """Return a short hash of a batch's numbers, empty for a batch without tensors."""
    made = hashlib.sha256()
    found = False
    for tensor in tensors(batch):
        found = True
        made.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        made.update(tensor.detach().cpu().contiguous().flatten().double().numpy().tobytes())
    return made.hexdigest()[:16] if found else ""
