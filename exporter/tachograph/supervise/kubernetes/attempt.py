"""An attempt whose ranks are in pods: made, watched and ended by a thread of its own, which waits for the API server.

It outlives its supervisor, and the next one goes on with it. The name of the object keeps a run from existing twice:
the API server creates none while another one is there, which it is until the last of its pods is gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tachograph.supervise.kubernetes.api import CONFLICT, ApiError
from tachograph.supervise.kubernetes.state import ObjectSeen, PodSeen
from tachograph.supervise.kubernetes.training_object import TrainingObject
from tachograph.supervise.training import AttemptEnd
from tachograph.text.humanize import listed

POLL_SECONDS, HURRY_SECONDS = 5.0, 0.5
"""How often the API server is asked while the training runs, and while something is to go or to begin."""
HURRIES = 60
"""How often it is asked in a hurry before that is given up."""
PODS_SECONDS = 30.0
"""How often pods are listed of which all run: each is some kilobytes."""
SILENT_SECONDS = 20.0
"""Age of the last answer from which on it is not known how the object is."""
END_SECONDS = 40.0
"""How long the end of all pods is awaited once the API server has agreed; the next attempt waits for it anyway."""
REFUSED_SECONDS = 600.0
"""How long the API server may take to agree."""

RUNNING = "Running"


@dataclass(frozen=True)
class AttemptSeen:
    """The last answers of the API server about an attempt; `waits` says for what it waits before it has pods that run.

    `error` is why the server did not answer since, `places` are the addresses of all nodes that it has had pods on.
    """

    object: ObjectSeen | None = None
    pods: tuple[PodSeen, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    waits: str = ""
    error: str = ""
    answered: float = -SILENT_SECONDS


class KubernetesAttempt:
    """The attempt with a mark; `earlier` are the marks of those before it, whose object has to go first."""

    def __init__(
        self, training: TrainingObject, made: dict[str, Any], mark: str, earlier: Collection[str], *,
        is_created: bool, places: Mapping[str, str],
    ) -> None:  # fmt: skip
        """`is_created` says that its object was there before: if it is not any more, somebody has deleted it.

        `places` are where an earlier supervisor saw its pods.
        """
        self.pid = 0
        self.status: int | None = None
        self.job = mark
        self.outlives = True
        self.withdrawn = ""
        """Why it has ended, or stands still, by somebody else."""
        self.seen = AttemptSeen(places=places)
        self._training, self._made, self._earlier = training, made, tuple(earlier)[-5:]
        self._is_created, self._uid, self._error = is_created, "", ""
        self._listed_at, self._listed_of = -PODS_SECONDS, ""
        self._has_ended, self._is_to_end, self._is_agreed = (threading.Event() for _ in range(3))
        self._wake = threading.Event()
        self._news, self._told = os.pipe()
        os.set_blocking(self._news, False)
        self._is_closed, self._lock = False, threading.Lock()
        self._hurries = 0
        self._thread = threading.Thread(target=self._run, name=f"attempt {mark}", daemon=True)
        self._thread.start()

    @property
    def is_created(self) -> bool:
        """Whether its object is, or was, there."""
        return self._is_created

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when it is created, all of its pods run, or it ends."""
        return self._news

    def send_signal(self, number: int) -> None:
        """Pass nothing on: what ends its supervisor does not end it."""

    def has_ended(self) -> bool:
        """Return whether its object says so, or is gone; takes in that there is news."""
        if not self._is_closed:
            with suppress(BlockingIOError):
                os.read(self._news, 1024)
        return self._has_ended.is_set()

    def end(self) -> AttemptEnd:
        """Have its object deleted with all pods; return once they are gone, or after a while."""
        self._is_to_end.set()
        self._wake.set()
        if not (self._is_agreed.wait(REFUSED_SECONDS) or self._has_ended.is_set()):
            return AttemptEnd(None, left=-1)
        if not self._has_ended.wait(END_SECONDS):
            self._finish()
            return AttemptEnd(None, note=f"its end is under way: {self.seen.waits}")
        return self.wait()

    def wait(self) -> AttemptEnd:
        """Return how it ended; its object stays, with the logs of its pods, until there is a next one."""
        self._has_ended.wait()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._news)
                os.close(self._told)
        return AttemptEnd(self.status, self._error)

    def silence(self) -> str:
        """Return why it is not known how it is, empty if it is."""
        if time.monotonic() - self.seen.answered < SILENT_SECONDS:
            return ""
        return self.seen.error or "the API server has not answered yet"

    def refresh(self) -> None:
        """Ask the API server how its pods are after its end, unless the last answer is recent."""
        if not self._has_ended.is_set() or time.monotonic() - self.seen.answered < HURRY_SECONDS:
            return
        try:
            self._look_at_pods(self._training.get(), fresh=True)
        except ApiError as error:
            self._note(error=str(error))

    def _run(self) -> None:
        while not self._has_ended.is_set():
            try:
                wait = self._step()
                self._note(error="", answered=time.monotonic())
            except ApiError as error:
                wait = POLL_SECONDS
                self._note(error=str(error))
                if error.is_refusal and not self._is_created:
                    self._finish(error=str(error))
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known, and that is said
                wait = POLL_SECONDS
                self._note(error=f"a fault of the supervisor's own: {type(error).__name__}: {error}")
            self._wake.wait(wait)
            self._wake.clear()

    def _note(self, **facts: Any) -> None:  # noqa: ANN401 - of several types
        self.seen = AttemptSeen(**{**vars(self.seen), **facts})

    def _finish(self, status: int | None = None, error: str = "", withdrawn: str = "") -> None:
        self.status, self._error, self.withdrawn = status, error, withdrawn
        self._has_ended.set()
        self._tell()

    def _tell(self) -> None:
        """Have the supervisor's loop look at what is new."""
        with self._lock:
            if not self._is_closed:  # or the number may be another file's by now
                os.write(self._told, b"n")

    def _step(self) -> float:
        """Do what is next; return how many seconds to wait after it. Raise ApiError."""
        found = self._training.get()
        if self._is_to_end.is_set():
            return self._step_to_end(found)
        if not self._is_created:
            return self._step_to_create(found)
        return self._step_to_watch(found)

    def _hurry(self, why: str) -> float:
        """Return when to look again at something that is to happen soon."""
        self._note(waits=why)
        self._hurries += 1
        return HURRY_SECONDS if self._hurries < HURRIES else POLL_SECONDS

    def _step_to_create(self, found: ObjectSeen | None) -> float:
        """Create the object once what is left of an earlier attempt is gone."""
        name = self._training.name
        if found is not None and found.mark == self.job:  # created, and the answer was lost
            self._is_created, self._uid, self._hurries = True, found.uid, 0
            self._tell()
            return 0.0
        if found is not None and found.mark not in self._earlier:
            self._finish(error=f"{name} is there, and no attempt in this journal has made it: another supervisor, or a "
                         "person, has. To begin, delete it")  # fmt: skip
            return 0.0
        if found is not None and not found.is_being_deleted:
            self._delete(found)
        left = self._training.pods(self._earlier) if self._earlier else ()
        if found is not None or left:
            return self._hurry(f"{name} of the last attempt is going{_stay(left)}")
        try:
            self._uid = self._training.create(self._made).uid
        except ApiError as error:
            if error.status == CONFLICT:
                return self._hurry(f"another {name} is there")
            raise
        self._is_created, self._hurries = True, 0
        self._tell()
        return HURRY_SECONDS

    def _step_to_watch(self, found: ObjectSeen | None) -> float:
        """Take in how the object is."""
        name = self._training.name
        if found is None or found.mark != self.job or self._uid not in ("", found.uid):
            other = "" if found is None else ", and another one made"
            self._note(object=None)
            self._finish(withdrawn=f"{name} was deleted by somebody else{other}")
            return 0.0
        self._uid = found.uid
        if found.is_being_deleted:
            self._note(object=found)
            self._finish(withdrawn=f"{name} is being deleted by somebody else")
            return 0.0
        self._look_at_pods(found, fresh=found.status is not None)
        if found.status is not None:
            self._finish(found.status)
            return 0.0
        self.withdrawn = f"{name} is suspended, by a queue or a person" if found.is_suspended else ""
        return POLL_SECONDS if self._is_whole() or found.is_suspended else self._hurry(self.seen.waits)

    def _look_at_pods(self, found: ObjectSeen | None, *, fresh: bool = False) -> None:
        """List the pods where something may have changed."""
        version = "" if found is None else found.version
        is_due = time.monotonic() - self._listed_at >= PODS_SECONDS
        pods = self.seen.pods
        if fresh or is_due or not self._is_whole() or version != self._listed_of:
            pods = self._training.pods((self.job,))
            self._listed_at, self._listed_of = time.monotonic(), version
        places = {**self.seen.places, **{one.node: one.address for one in pods if one.node and one.address}}
        waits = "" if found is None or not found.is_suspended else f"{self._training.name} is suspended"
        waits = waits or _waits(self._training.name, pods)
        is_new = waits != self.seen.waits
        self._note(object=found, pods=pods, places=places, waits=waits, answered=time.monotonic())
        if is_new:
            self._tell()

    def _is_whole(self) -> bool:
        return bool(self.seen.pods) and all(one.phase == RUNNING and one.address for one in self.seen.pods)

    def _step_to_end(self, found: ObjectSeen | None) -> float:
        """Have the object deleted, until it and its pods are gone."""
        is_ours = found is not None and found.mark == self.job
        if found is not None and is_ours and not found.is_being_deleted:
            self._note(object=found)
            self._delete(found)
        self._is_agreed.set()
        left = self._training.pods((self.job,))
        if is_ours or left:
            return self._hurry(f"{self._training.name} is going{_stay(left)}")
        self._finish()
        return 0.0

    def _delete(self, found: ObjectSeen) -> None:
        try:
            self._training.delete(found.uid)
        except ApiError as error:
            if error.status not in (404, CONFLICT):  # it is gone, or another one by now
                raise


def _stay(pods: Collection[PodSeen]) -> str:
    """Return which pods do not go, in words; nobody but a person may say that their node is down for sure."""
    if not pods:
        return ""
    names = listed([f"{one.name} on {one.node}" if one.node else one.name for one in pods])
    return (
        f", and waits for pod {names}: if a node is lost, its pods stay until it is back, or until a person who "
        "knows that it is down deletes them (kubectl delete pod --force)"
    )


def _waits(name: str, pods: Collection[PodSeen]) -> str:
    """Return for what an attempt waits, empty if all of its pods have begun."""
    if not pods:
        return f"{name} has no pods yet"
    waiting = [one for one in pods if one.phase == "Pending"]
    if not waiting:
        return ""
    first = waiting[0]
    more = f", as {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"pod {first.name} does not run yet{more}: {first.waits or 'it is being started'}"
