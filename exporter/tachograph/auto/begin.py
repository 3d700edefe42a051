"""The hooks into PyTorch, set once it has been imported, and a record that waits for a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.attach.observer import Observer
from tachograph.attach.summary import Summary
from tachograph.attach.torch_hooks import attach
from tachograph.auto.recording import AutoRecording
from tachograph.auto.trouble import tell
from tachograph.client.core.notice import tell_instead

UNREACHABLE = frozenset({"exporter", "permission", "refusal"})
"""Subjects of notices on an exporter that cannot be spoken to."""

UNRECORDED = frozenset({"run", "start"})
"""Subjects of those on a record that could not begin, which can say nothing itself."""


def begin(torch: Any) -> Callable[[], None]:  # noqa: ANN401 - a module that we do not import
    """Observe the process; return what to call when the program makes a recorder of its own."""
    faults: dict[str, str] = {}

    def told(subject: str, text: str) -> None:
        if subject in UNRECORDED:
            tell(text)
        elif subject not in UNREACHABLE:
            faults[subject] = text

    tell_instead(told)
    recording = AutoRecording(faults.values())
    observer = Observer(recording)

    def forget() -> None:
        observer.summary = recording.summary = Summary()
        observer.begin_training()

    recording.finish, recording.forget = observer.finish, forget
    attach(torch, observer)
    return recording.script_records
