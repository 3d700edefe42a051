"""The identity of this process in its run: given explicitly, or detected from what its launcher set.

Order: explicit argument, `TACHOGRAPH_*`, torchrun, `torch.distributed` if it is already initialised, MPI, Slurm; else
rank 0 of run `local-<user>`. For the role: argument, `TACHOGRAPH_ROLE`, torchrun, the class of a Ray actor. Each field
is looked up separately; an invalid value is skipped and counted.

MPI comes before Slurm: in a Slurm job the processes of `mpirun` inherit `SLURM_PROCID` from their parent.
A batch script has one as well, 0, and as `SLURM_NTASKS` the tasks that its job may start; how many there are is known
within a step of `srun` alone. Kubernetes numbers pods (`JOB_COMPLETION_INDEX`), not processes: no rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tachograph.client.core.arguments import count, name
from tachograph.client.core.misuse import Misuse
from tachograph.client.core.notice import shown
from tachograph.client.hello.role import launched_role, ray_role
from tachograph.client.torch.loaded_torch import in_use
from tachograph.wire import MAX_NAME_BYTES, MAX_RUN_BYTES, is_role, with_role

# torchrun's static rendezvous calls every run "none": a name that names nothing.
_NAMELESS = frozenset({"none", "None"})

_RUN = ("TACHOGRAPH_RUN", "TORCHELASTIC_RUN_ID", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID")
_COUNTS: dict[str, tuple[str, ...]] = {
    "rank": (
        "TACHOGRAPH_RANK", "RANK", "torch:get_rank", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK",
        "PMI_RANK", "SLURM_PROCID",
    ),
    "local_rank": (
        "TACHOGRAPH_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID", "SLURM_LOCALID",
    ),
    "world_size": (
        "TACHOGRAPH_WORLD_SIZE", "WORLD_SIZE", "torch:get_world_size", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE",
        "PMI_SIZE", "SLURM_STEP_NUM_TASKS",
    ),
    "attempt": ("TACHOGRAPH_ATTEMPT",),
}  # fmt: skip
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""The larger one is the attempt: a job that Slurm queues again begins with a new torchrun, whose count is 0."""

ROLE_RULE = f"a role is printable text of 1 to {MAX_NAME_BYTES} bytes ({MAX_RUN_BYTES} with the run) without a slash"


class Identity(NamedTuple):
    """A rank's place in its run, or in one role of it; `refused` counts the values that were skipped."""

    run: str
    rank: int
    local_rank: int
    world_size: int
    attempt: int
    refused: int
    role: str = ""

    @property
    def group(self) -> str:
        """The name by which its group of ranks goes: the run's, and its role if it has one, as `ppo/critic`."""
        return with_role(self.run, self.role)


def discover(
    given: Mapping[str, object],
    environment: Mapping[str, str],
    user: Callable[[], str] | None = None,
    misuse: Misuse | None = None,
) -> Identity:
    """Return the identity from explicit arguments (None: not given), the environment and torch.distributed."""
    refused = 0

    def first(
        field: str, candidates: Iterable[object], read: Callable[[object], int | str | None], rule: str = ""
    ) -> int | str | None:
        nonlocal refused
        for candidate in candidates:
            if candidate is None or (type(candidate) is str and candidate in ("", *_NAMELESS)):
                continue
            value = read(candidate)
            if value is not None:
                return value
            refused += 1
            if misuse is not None:
                text = shown(candidate)
                hint = f"is ignored: {rule}, not {text}" if rule else f"cannot be {text}: the value is ignored"
                misuse.note("wrong_type", field, hint)
        return None

    run = first("run", _candidates(given.get("run"), _RUN, environment), name)
    if run is None:
        run = local_run(user)
    elif given.get("run") is None and run == environment.get("SLURM_ARRAY_JOB_ID"):
        run = f"{run}_{environment.get('SLURM_ARRAY_TASK_ID', '0')}"  # Slurm's own spelling of one task of an array
    named = str(run)

    def a_role(value: object) -> str | None:
        text = name(value)
        return text if text is not None and is_role(text, named) else None

    roles = (given.get("role"), environment.get("TACHOGRAPH_ROLE"), launched_role(environment), ray_role())
    role = first("role", roles, a_role, ROLE_RULE)
    counts = {
        field: first(field, _candidates(given.get(field), sources, environment), count)
        for field, sources in _COUNTS.items()
    }
    if counts["attempt"] is None:
        restarts = (first("attempt", iter([environment.get(variable)]), count) for variable in _RESTARTS)
        counts["attempt"] = max(int(times or 0) for times in restarts)
    rank = int(counts["rank"] or 0)
    return Identity(
        run=named,
        rank=rank,
        local_rank=int(counts["local_rank"] or 0),
        world_size=max(int(counts["world_size"] or 1), rank + 1),
        attempt=int(counts["attempt"] or 0),
        refused=refused,
        role=str(role or ""),
    )


def local_run(user: Callable[[], str] | None = None) -> str:
    """Return the name of a run that nobody has named."""
    return name(f"local-{(user or _user)()}") or "local"


def _candidates(given: object, sources: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[object]:
    yield given
    for source in sources:
        yield _ask_torch(source[6:]) if source.startswith("torch:") else environment.get(source)


def _ask_torch(question: str) -> object:
    distributed = in_use("distributed")
    try:
        return getattr(distributed, question)()
    except Exception:  # noqa: BLE001 - not in use, or not supported by this build
        return None


def _user() -> str:
    for variable in ("LOGNAME", "USER"):
        if found := name(os.environ.get(variable)):
            return found
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError, OSError):  # a container's uid without an entry, no free file descriptor
        return f"uid{os.getuid()}"
