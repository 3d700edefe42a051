"""The names of runs as this node shows them: one that a person gave is qualified by its owner, `alice/llama-7b`.

Rules join on the name of a run, and any process on any node may say any name. Whose process it is, the kernel says
(SO_PEERCRED), so that nobody can page or silence another user's run by its name.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable

from tachograph.node.ranks.frames import Hello

POLICIES = ("auto", "always", "never")
MAX_USERS = 1024
"""Users whose names are kept: a name service may be slow."""

_ROOT = 0
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.ASCII)
_ARRAY_TASK = re.compile(r"(?:.+-)?\d+_\d+", re.ASCII)
"""A task of a Slurm array, as squeue prints it; its `job_id` is another number."""


def user_name(uid: int) -> str | None:
    """Return the name of a user as this machine knows it, None if it has none, as in most containers."""
    try:
        return pwd.getpwuid(uid).pw_name or None
    except (KeyError, OverflowError, OSError):
        return None


class RunNames:
    """Says which name a run is shown by.

    `auto` leaves out the owner where that is root, `own_uid`, or a uid without a name, and where a name is unique by
    itself: a UUID, as torchrun and Kubernetes make them, or one that ends with its Slurm job's id. `always` qualifies
    every name, by the uid where the user has no name, and `never` none.
    """

    def __init__(
        self, policy: str = "auto", own_uid: int | None = None, user: Callable[[int], str | None] = user_name
    ) -> None:
        self._policy = policy
        self._own_uid = os.geteuid() if own_uid is None else own_uid
        self._user = user
        self._users: dict[int, str | None] = {}

    def shown(self, hello: Hello, uid: int) -> str:
        """Return the name by which the run of a hello is shown."""
        if self._policy == "never":
            return hello.run
        if self._policy == "always":
            return f"{self._name_of(uid) or uid}/{hello.run}"
        if uid in (_ROOT, self._own_uid) or _is_unique(hello):
            return hello.run
        owner = self._name_of(uid)
        if owner is None and "/" in hello.run:
            owner = str(uid)  # or it could say alice/llama-7b
        return hello.run if owner is None else f"{owner}/{hello.run}"

    def _name_of(self, uid: int) -> str | None:
        if uid not in self._users:
            if len(self._users) >= MAX_USERS:
                self._users.clear()
            self._users[uid] = self._user(uid)
        return self._users[uid]


def _is_unique(hello: Hello) -> bool:
    if _UUID.fullmatch(hello.run):
        return True
    if not isinstance(hello.job, dict) or hello.job.get("scheduler") != "slurm":
        return False
    return hello.run.rpartition("-")[2] == hello.job.get("job_id") or _ARRAY_TASK.fullmatch(hello.run) is not None
