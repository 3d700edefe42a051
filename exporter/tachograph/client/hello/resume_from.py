"""The checkpoint that a framework's training begins from: one argument of its own call, by the plan of this attempt."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tachograph.client.hello.identity import discover
from tachograph.client.hello.plan import plan_of

PUT_ASIDE = "put-aside"
"""The folder for checkpoints that a run was sent back from, in that of the others."""

_NAME = re.compile(
    r"(?:(?:.*[-_=])?step[-_=]?|(?:checkpoint|ckpt|iter|model)[-_=]?|)(\d+)(?:-v\d+)?(?:\.(?:ckpt|pt|pth|safetensors))?"
)
"""How frameworks name a checkpoint by its step; the folder may hold other files, which are left alone."""


def resume_from(folder: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> str | None:
    """Return the path of the checkpoint to begin from, None to begin anew: what frameworks take as an argument.

    Without a plan (`tachograph supervise`) it is the newest in `folder`, by the step in its name, such as
    `checkpoint-500`, `epoch=0-step=500.ckpt` or `step_500`. A plan that sends the run back names another one, and what
    came after that is moved to `put-aside` in the same folder by rank 0. Raises OSError where that cannot be done.
    """
    given = os.environ if environment is None else environment
    plan = plan_of(given)
    path = os.fspath(folder)
    found = _by_step(path)
    if plan.step is not None:
        later = {name: step for name, step in found.items() if step > plan.step}
        if later and not discover({}, given).rank:
            os.makedirs(os.path.join(path, PUT_ASIDE), exist_ok=True)  # noqa: PTH103, PTH118 - as below
            for name in later:
                os.rename(os.path.join(path, name), _free(path, name, plan.attempt))  # noqa: PTH104, PTH118 - as below
        if plan.checkpoint:
            return plan.checkpoint
        found = {name: step for name, step in found.items() if step <= plan.step}
    if not found:
        return None
    return os.path.join(path, max(found, key=lambda name: (found[name], name)))  # noqa: PTH118 - as below


def _free(folder: str, name: str, attempt: int) -> str:
    """Return a place to put a checkpoint aside; each attempt has its own name for it."""
    return os.path.join(folder, PUT_ASIDE, f"{name}.{attempt}")  # noqa: PTH118 - pathlib costs 3 ms and 0.7 MB


def _by_step(folder: str) -> dict[str, int]:
    """Return the steps of the checkpoints in a folder by name; none where it is not there."""
    try:
        names = [each.name for each in os.scandir(folder) if not each.name.startswith(".")]
    except FileNotFoundError:
        return {}
    steps = {name: _NAME.fullmatch(name) for name in names}
    return {name: int(match[1]) for name, match in steps.items() if match}
