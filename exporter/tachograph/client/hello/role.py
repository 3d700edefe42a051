"""The role of this process beside other groups of ranks of its run, as its launcher says or its framework shows.

torchrun exports `ROLE_NAME` (`--role`), which is a role only where every rank of its rendezvous has it and so counts
from 0: many scripts give each node its own name there, which torchrun writes before lines of the log.

Of a Ray actor the class says it, for those of OpenRLHF, verl and NeMo-RL below. Nothing is imported: what Ray's worker
holds is looked at where Ray has been imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

_NO_ROLES = frozenset({"default", "default_role", "none"})
"""What PyTorch's launchers say if nobody gave a role: torchrun, and `LaunchConfig`."""

_CLASSES: Mapping[str, str] = {
    "PolicyModelActor": "actor", "CriticModelActor": "critic",
    "ReferenceModelActor": "reference", "RewardModelActor": "reward",
    "ActorRolloutRefWorker": "actor", "CriticWorker": "critic", "RewardModelWorker": "reward",
    "DTensorPolicyWorker": "actor", "MegatronPolicyWorker": "actor", "DTensorValueWorker": "critic",
}  # fmt: skip
"""Classes of OpenRLHF, of verl and of NeMo-RL, in this order; a class derived from one has its role. NeMo-RL's
names may end in `V2`, `Impl` or both."""

_MEMBERS: Mapping[str, str] = {
    "actor": "actor", "actor_rollout": "actor", "actor_rollout_ref": "actor", "critic": "critic",
}  # fmt: skip
"""Workers that train, by their names in verl's `WorkerDict`, which holds all that share a process."""


def launched_role(environment: Mapping[str, str]) -> str | None:
    """Return the role that torchrun gave all ranks of this rendezvous, None if none or the name of a node."""
    role = environment.get("ROLE_NAME", "").strip()
    is_whole = environment.get("ROLE_WORLD_SIZE", "?") == environment.get("WORLD_SIZE")
    if not is_whole or role.lower() in _NO_ROLES or not any(map(str.isalpha, role)):
        return None
    host = os.uname().nodename
    return None if role.rstrip(":") in (host, host.partition(".")[0]) else role


def ray_role() -> str | None:
    """Return the role of the Ray actor that this process is, None where it is none that is known; never raises."""
    try:
        worker = vars(sys.modules["ray._private.worker"])["global_worker"]
        roles = {role for actor in list(worker.actors.values()) for role in _roles(actor)}
    except KeyError:
        return None
    except Exception:  # noqa: BLE001 - its private names are others by now, or an actor's own code raises
        return None
    return roles.pop() if len(roles) == 1 else None


def _roles(actor: object) -> Iterator[str]:
    members = vars(actor).get("worker_dict")
    if isinstance(members, dict):
        yield from (_MEMBERS[name] for name in members if name in _MEMBERS)
    else:
        names = (kind.__name__.removesuffix("Impl").removesuffix("V2") for kind in type(actor).__mro__)
        yield from (_CLASSES[name] for name in names if name in _CLASSES)
