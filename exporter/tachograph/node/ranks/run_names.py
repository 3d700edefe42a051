"""The names of runs as this node shows them: one that a person gave is qualified by its owner, `alice/llama-7b`.

Rules join on the name of a run, and any process on any node may say any name. Whose process it is, the kernel says
(SO_PEERCRED), so that nobody can page or silence another user's run by its name.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.wire import MAX_NAME_BYTES, fits

if TYPE_CHECKING:
    from tachograph.node.ranks.frames import Hello, Peer  # an extra that --help does without

POLICIES = ("auto", "always", "never")
MAX_USERS = 1024
"""Users whose names are kept: a name service may be slow."""

MAX_OWNER_BYTES = 64
"""Of a user's name before that of the run; a longer one is replaced by the uid."""

MAX_SHOWN_BYTES = MAX_OWNER_BYTES + len("/") + MAX_NAME_BYTES

MAX_CGROUP_BYTES = 4096
"""Of a process' list of cgroups: one line, or a dozen with version 1."""

PROC = Path("/proc")
_ROOT = 0
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.ASCII)
_ARRAY_TASK = re.compile(r"(?:.+-)?\d+_\d+", re.ASCII)
"""A task of a Slurm array, as squeue prints it; its `job_id` is another number."""

_JOB = re.compile(rb"/job_(\d+)(?:/|$)")
_OF_A_USER = b"/user.slice/"
"""Below it systemd lets users make cgroups of their own, by any name."""


def user_name(uid: int) -> str | None:
    """Return the name of a user as this machine knows it, None if it has none, as in most containers."""
    try:
        return pwd.getpwuid(uid).pw_name or None
    except (KeyError, OverflowError, OSError):
        return None


def slurm_jobs(pid: int) -> frozenset[str]:
    """Return the ids of the Slurm jobs that a process belongs to, as the kernel has them: from its cgroups."""
    try:
        with (PROC / str(pid) / "cgroup").open("rb") as file:
            lines = file.read(MAX_CGROUP_BYTES).splitlines()
    except OSError:
        return frozenset()
    found = [_JOB.search(line) for line in lines]
    return frozenset(one[1].decode() for one in found if one and _OF_A_USER not in one.string[: one.start() + 1])


class RunNames:
    """Says which name a run is shown by.

    `auto` leaves out the owner where that is root, `own_uid`, or a uid without a name, and where a name is unique by
    itself: a UUID, as torchrun and Kubernetes make them, or one that ends with the id of the Slurm job in which the
    process runs. `always` qualifies every name, by the uid where the user has no name, and `never` none.
    """

    def __init__(
        self,
        policy: str = "auto",
        own_uid: int | None = None,
        user: Callable[[int], str | None] = user_name,
        jobs: Callable[[int], frozenset[str]] = slurm_jobs,
    ) -> None:
        self._policy = policy
        self._own_uid = os.geteuid() if own_uid is None else own_uid
        self._user = user
        self._jobs = jobs
        self._users: dict[int, str | None] = {}

    def shown(self, hello: Hello, peer: Peer) -> str:
        """Return the name by which the run of a hello is shown; it may be longer than a frame may carry."""
        uid = peer.uid
        if self._policy == "never":
            return hello.run
        if self._policy == "always":
            return f"{self._name_of(uid) or uid}/{hello.run}"
        if uid in (_ROOT, self._own_uid) or _UUID.fullmatch(hello.run) or self._is_of_its_job(hello, peer):
            return hello.run
        owner = self._name_of(uid)
        if owner is None and "/" in hello.run:
            owner = str(uid)  # or it could say alice/llama-7b
        return hello.run if owner is None else f"{owner}/{hello.run}"

    def _is_of_its_job(self, hello: Hello, peer: Peer) -> bool:
        """Return whether the run is named after a Slurm job, and the process that says so is in that job."""
        if "/" in hello.run or not isinstance(hello.job, dict) or hello.job.get("scheduler") != "slurm":
            return False
        job = hello.job.get("job_id")
        if not isinstance(job, str) or not (hello.run.rpartition("-")[2] == job or _ARRAY_TASK.fullmatch(hello.run)):
            return False
        return job in self._jobs(peer.pid)

    def _name_of(self, uid: int) -> str | None:
        if uid not in self._users:
            if len(self._users) >= MAX_USERS:
                self._users.clear()
            name = self._user(uid)
            fitting = name is None or (fits(name, MAX_OWNER_BYTES) and "/" not in name)
            self._users[uid] = name if fitting else str(uid)
        return self._users[uid]
