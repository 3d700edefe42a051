"""A run in the pods of one object, such as a Job: launched by making that anew, and watched on its pods' nodes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence

from tachograph.supervise.findings import AskingThreads, FindingSource
from tachograph.supervise.kubernetes.attempt import KubernetesAttempt
from tachograph.supervise.kubernetes.manifest import ManifestError, rendered
from tachograph.supervise.kubernetes.training_object import TrainingObject
from tachograph.supervise.launcher import IN_PLACE, Outlook
from tachograph.supervise.run_seen import RunSeen, Silent, Unknown
from tachograph.supervise.several_nodes import NODES_A_TURN, SeveralNodes
from tachograph.text.humanize import listed


class KubernetesRun:
    """Makes the object that trains anew for each attempt, on none of the nodes that are left out."""

    def __init__(self, training: TrainingObject, run: str, marks: Sequence[str], say: Callable[[str], None]) -> None:
        """`marks` are those of the attempts in the journal."""
        self.training, self.marks = training, list(marks)
        self.attempt: KubernetesAttempt | None = None
        self._run, self._say = run, say
        self._mark = ""
        self._size, self._is_said = 1, False
        self._left_out: frozenset[str] = frozenset()

    @property
    def places(self) -> Mapping[str, str]:
        """The nodes of the last attempt's pods, and their addresses, once all pods run."""
        seen = None if self.attempt is None else self.attempt.seen
        return {} if seen is None or seen.waits or not seen.pods else seen.places

    def mark(self) -> str:
        """Return a new label's value, by which the object and the pods of the next attempt are known."""
        self._mark = secrets.token_hex(8)
        return self._mark

    @property
    def is_created(self) -> bool:
        """Whether the object of the last attempt is, or was, there."""
        return self.attempt is not None and self.attempt.is_created

    def start(self, environment: Mapping[str, str], left_out: Collection[str]) -> KubernetesAttempt:
        """Have the object made, as soon as it can be; raise OSError."""
        return self.go_on(environment, left_out, self._mark, is_created=False, places={})

    def go_on(
        self,
        environment: Mapping[str, str],
        left_out: Collection[str],
        mark: str,
        *,
        is_created: bool,
        places: Mapping[str, str],
    ) -> KubernetesAttempt:
        """Return the attempt with this mark, whose object is made unless it has been; raise OSError."""
        try:
            made = rendered(self.training.manifest, self._run, mark, environment, left_out)
        except ManifestError as error:
            raise OSError(str(error)) from error
        self._left_out = frozenset(left_out)
        earlier = [one for one in self.marks if one != mark]
        self.marks = [*earlier, mark]
        self.attempt = KubernetesAttempt(self.training, made, mark, earlier, is_created=is_created, places=places)
        return self.attempt

    def outlook(self, left_out: Collection[str], *, fresh: bool = False) -> Outlook:
        """Return what the API server says of the attempt, now that it has ended, or some seconds ago.

        Which other nodes there are is not known, for that needs rights over them: a pod waits until there is one.
        """
        attempt = self.attempt
        if attempt is None:
            return Outlook()
        if fresh:
            attempt.refresh()
        self._size = max(len(attempt.seen.places), self._size)
        if silence := attempt.silence():
            return Outlook(unknown=f"it is not known how {self.training.name} is: {silence}", size=self._size)
        if attempt.withdrawn and attempt.has_ended() and not self._is_said:
            self._is_said = True
            self._say(f"run {self._run} has ended: {attempt.withdrawn}. To start it, give the command again")
        lost = tuple(sorted({one.node for one in attempt.seen.pods if one.is_lost and one.node}))
        return Outlook(attempt.withdrawn, "", None, IN_PLACE, "", self._size, "", lost)

    def queue_again(self, left_out: Collection[str]) -> str:
        """Return that there is no need to."""
        return "each attempt is made again anyway"

    def note_places(self, places: Mapping[str, str]) -> None:
        """Say once which node an attempt got that it should not have: its label has another name."""
        if again := sorted(self._left_out & places.keys()):
            self._left_out -= set(again)
            self._say(
                f"{listed(again)} is left out of run {self._run}, and has pods of it: the label "
                "kubernetes.io/hostname of a node must have its name"
            )


class PodNodes:
    """The exporters of the nodes that the pods of an attempt are on, or were."""

    def __init__(self, run: KubernetesRun, name: str, address: Callable[[str, str], str]) -> None:
        """`address` returns that of the exporter of a node with this name and this address."""
        self._run, self._name, self._address = run, name, address
        self._threads = AskingThreads(NODES_A_TURN)
        self.addresses: dict[str, str] = {}
        """Of the exporters of this attempt, by node."""
        self._attempt: KubernetesAttempt | None = None
        self._used: Collection[str] = ()
        self._sources: dict[str, FindingSource] = {}
        self._nodes = SeveralNodes(self._sources, lambda: self._used)

    def begin(self) -> None:
        """Note nothing: ranks of earlier attempts are known by their mark."""

    def look(self, attempt_seconds: float, *, in_turns: bool = False) -> RunSeen | Unknown:
        """Return what is known of the run by all nodes that its pods are on."""
        attempt = self._run.attempt
        if attempt is None:
            return Unknown("no attempt has begun")
        seen = attempt.seen
        if attempt is not self._attempt:
            self._attempt, self._used = attempt, ()
            self._sources, self.addresses = {}, {}
            self._nodes = SeveralNodes(self._sources, lambda: self._used)
        if not attempt.has_ended() and (seen.waits or not seen.pods):
            return Unknown(seen.waits or seen.error or "the API server has not shown its pods yet")
        places = seen.places
        self._run.note_places(places)
        for node, at in places.items():
            if node not in self._sources:
                self.addresses[node] = self._address(node, at)
                self._sources[node] = FindingSource(
                    self.addresses[node], [self._name], node, by=self._threads, job=attempt.job,
                    earlier_jobs=self._run.marks[:-1],
                )  # fmt: skip
        self._used = frozenset(places)
        found = self._nodes.look(attempt_seconds, in_turns=in_turns)
        present = frozenset(one.node for one in seen.pods if one.node in places)
        if isinstance(found, Silent) and present and present != self._used:  # one may be gone with its pod
            self._used = present
            found = self._nodes.look(attempt_seconds)
        return found
