"""Check `model`: what makes the user's model hang or learn wrongly once several ranks train it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from tachograph.preflight.finding import FAIL, WARN, Conclusion, Facts, PreflightFinding, Untyped
from tachograph.preflight.options import PreflightOptions
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.preflight.speeds import minority
from tachograph.preflight.user_code import UserCodeError, call, tensors, without_problems
from tachograph.text.humanize import listed, plural, short


def _missing(options: PreflightOptions) -> str:
    return "" if options.model else "give a function that returns it: --model MODULE:FUNCTION"


def measure(site: PreflightSite) -> Facts:
    """Return the model's structure, its BatchNorm layers, and, with a loader, the parameters without a gradient."""
    import torch

    try:
        model = call(site.options.model or "")
    except UserCodeError as error:
        return {"problem": str(error)}
    if not isinstance(model, torch.nn.Module):
        return {"problem": f"{site.options.model} returns {type(model).__name__}, not a torch.nn.Module"}
    wrapped = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    named = [(name, tuple(one.shape), str(one.dtype), one.requires_grad) for name, one in model.named_parameters()]
    facts: dict[str, Untyped] = {
        "problem": "",
        "structure": hashlib.sha256(repr(named).encode()).hexdigest()[:16],
        "parameters": sum(one.numel() for one in model.parameters()),
        "batch_norms": [
            name
            for name, one in model.named_modules()
            if isinstance(one, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(one, torch.nn.SyncBatchNorm)
        ],
        "finds_unused": bool(model.find_unused_parameters) if wrapped else None,
        "unused": None,
        "not_run": "",
    }
    if site.options.loader:
        inner = model.module if wrapped else model  # the wrapper's hooks would wait for the other ranks
        facts |= _gradients(inner, site)
    return facts


def _gradients(model: Untyped, site: PreflightSite) -> dict[str, Untyped]:
    """Return the parameters that one batch gives no gradient, or why none could be computed."""
    try:
        batch = next(iter(call(site.options.loader or "")))
        model.to(site.device).train()
        output = _forward(model, _moved(batch, site.device))
        losses = [one.float().sum() for one in tensors(_loss(output)) if one.requires_grad]
        if not losses:
            return {"not_run": "its output needs no gradient"}
        sum(losses).backward()
    except Exception as error:  # noqa: BLE001 - the user's model, on the user's data
        return {"not_run": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]}
    return {"unused": [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None]}


def _moved(batch: Untyped, device: str) -> Untyped:
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _moved(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_moved(value, device) for value in batch]
    return batch


def _forward(model: Untyped, batch: Untyped) -> Untyped:
    """Return the model's output for a batch as loaders give it: by keyword, or all of it, or without the labels."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list):
        try:
            return model(*batch)
        except TypeError:
            return model(batch[0])
    return model(batch)


def _loss(output: Untyped) -> Untyped:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return output if loss is None else loss


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name what would hang a collective of gradients, or train something else than a single process does."""
    good, findings = without_problems(facts, site)
    if not good:
        return Conclusion("", findings)
    for ranks in minority({rank: one["structure"] for rank, one in good.items()}).values():
        what = f"the model of {site.who(ranks)} has other parameters than that of the others"
        then = "build it from the same configuration and code everywhere; gradients would be added to the wrong ones"
        findings.append(PreflightFinding(FAIL, what, then, tuple(ranks)))
    first = next(iter(good.values()))
    findings += _of_one(first)
    summary = f"{short(first['parameters'])} parameters"
    if first["not_run"]:
        summary += f"; gradients not checked: {first['not_run']}"
    elif first["unused"] is None:
        summary += "; gradients not checked: --loader is not given"
    return Conclusion(summary, findings)


def _of_one(one: Facts) -> Iterator[PreflightFinding]:
    if norms := one["batch_norms"]:
        what = f"{plural(len(norms), 'BatchNorm layer')} would keep statistics of each rank alone: {listed(norms)}"
        then = "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before DistributedDataParallel"
        yield PreflightFinding(FAIL, what, then)
    if one["unused"] and not one["finds_unused"]:
        what = f"{plural(len(one['unused']), 'parameter')} get no gradient: {listed(one['unused'])}"
        then = "DistributedDataParallel(…, find_unused_parameters=True), or requires_grad_(False), or use them"
        yield PreflightFinding(FAIL, what, then)
    if one["finds_unused"] and one["unused"] == []:
        what = (
            "find_unused_parameters=True, and every parameter gets a gradient: each step searches the graph for nothing"
        )
        yield PreflightFinding(WARN, what, "leave it out, unless other batches use fewer parameters")


CHECK = PreflightCheck(
    "model", "your model: BatchNorm, parameters without gradient", measure, conclude, _missing, needs_torch=True
)
