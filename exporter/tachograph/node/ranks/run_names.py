"""The names of runs as this node shows them: qualified by owner and role, `alice/llama-7b`, `alice/ppo/critic`.

Rules join on the name of a run, and any process on any node may say any name. Whose process it is, the kernel says
(SO_PEERCRED), so that nobody can page or silence another user's run by its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.node.ranks.user_names import MAX_OWNER_BYTES, HasRanks, UserNames, user_name
from tachograph.wire import MAX_RUN_BYTES, with_role

if TYPE_CHECKING:
    from tachograph.node.ranks.frames import Hello, Peer  # an extra that --help does without

POLICIES = ("auto", "always", "never")
MAX_SHOWN_BYTES = MAX_OWNER_BYTES + len("/") + MAX_RUN_BYTES

MAX_CGROUP_BYTES = 4096
"""Of a process' list of cgroups: one line, or a dozen with version 1."""

PROC = Path("/proc")
_ROOT = 0
_UNMAPPED = 65534
"""The uid that the kernel reports in a user namespace for everybody outside it."""

_JOB = re.compile(rb"\d+:[^:]*:(?:/system\.slice)?/[\w.-]*slurm[\w.-]*(?:/uid_\d+)?/job_(\d+)(?:/|$)", re.ASCII)
"""A cgroup that Slurm made, which only root can do at this place, with version 1 or 2."""


def slurm_jobs(pid: int) -> frozenset[str]:
    """Return the ids of the Slurm jobs that a process belongs to, as the kernel has them: from its cgroups."""
    try:
        with (PROC / str(pid) / "cgroup").open("rb") as file:
            lines = file.read(MAX_CGROUP_BYTES).split(b"\n")  # the one character that no name of a cgroup has
    except OSError:
        return frozenset()
    found = [_JOB.match(line) for line in lines]
    return frozenset(one[1].decode() for one in found if one)


def nobody_has_ranks(_: int | str) -> bool:
    """Return False: of a node without ranks."""
    return False


class RunNames:
    """Says which name a run is shown by.

    `auto` leaves out the owner in two cases: root and `own_uid`, the exporter's user, unless the name could be that of
    another's run; and a name that ends with the id of the Slurm job in which its process runs. `always` qualifies
    every name, and `never` none. A name with a role keeps its owner where a user has the name of the run:
    `alice/critic` could be a run of alice's.
    """

    def __init__(
        self,
        policy: str = "auto",
        own_uid: int | None = None,
        user: Callable[[int | str], str | None] = user_name,
        jobs: Callable[[int], frozenset[str]] = slurm_jobs,
    ) -> None:
        self._policy = policy
        self._trusted = {_ROOT, os.geteuid() if own_uid is None else own_uid} - {_UNMAPPED}
        self.users = UserNames(user)
        self._jobs = jobs

    def is_awaited(self, uid: int, has_ranks: HasRanks) -> bool:
        """Return whether a user's first hello should wait, because the user's name is being looked up."""
        return self._policy != "never" and uid != _ROOT and self.users.is_awaited(uid, has_ranks)

    def is_role_awaited(self, hello: Hello, peer: Peer, has_ranks: HasRanks) -> bool:
        """Return whether this hello should wait, because it is being looked up whether its run is a user's name."""
        is_open = self._policy == "auto" and hello.role != "" and self._is_plain(hello, peer)
        return is_open and self.users.is_awaited(hello.run, has_ranks)

    def user(self, uid: int, has_ranks: HasRanks) -> str:
        """Return how a user is shown, by the uid while the name is being looked up."""
        if uid == _ROOT:
            return "root"
        is_unknown = self._policy == "never" or self.is_awaited(uid, has_ranks)
        return f"uid:{uid}" if is_unknown else self.users.shown(uid, has_ranks)

    def shown(self, hello: Hello, peer: Peer, has_ranks: HasRanks = nobody_has_ranks) -> str:
        """Return the name by which the run of a hello is shown; it may be longer than a frame may carry."""
        name = with_role(hello.run, hello.role)
        if self._policy == "never":
            return name
        is_plain = self._policy == "auto" and self._is_plain(hello, peer)
        if is_plain and not (hello.role and self.users.may_be(hello.run, has_ranks)):
            return name
        owner = "root" if peer.uid == _ROOT else self.users.shown(peer.uid, has_ranks)
        return f"{owner}/{name}"

    def _is_plain(self, hello: Hello, peer: Peer) -> bool:
        """Return whether the name of the run needs no owner: no other user could say it, or have it."""
        if "/" in hello.run[1:] or (hello.role and hello.run.startswith("uid:")):
            return False  # a directory service gives users names with blanks and all else
        return peer.uid in self._trusted or self._is_of_its_job(hello, peer)

    def _is_of_its_job(self, hello: Hello, peer: Peer) -> bool:
        """Return whether the run is named after a Slurm job, and the process that says so is in that job."""
        job = hello.job.get("job_id") if isinstance(hello.job, dict) and hello.job.get("scheduler") == "slurm" else None
        is_named = isinstance(job, str) and hello.run.rpartition("-")[2] == job
        return is_named and job in self._jobs(peer.pid)
