"""What the recorder needs of a tracer of single steps (`tachograph.export.traces`); there is none by default."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tachograph.client.core.step_record import StepRecord
    from tachograph.client.hello.identity import Identity


class Trace(Protocol):
    """A step observer that also sees phases begin and end."""

    def start(self, identity: Identity) -> None:
        """Begin; called once, when the recorder is made."""

    def phase(self, inner: AbstractContextManager[None], name: str) -> AbstractContextManager[None]:
        """Return what does as `inner` does and is traced as `name`."""
        ...

    def observe(self, record: StepRecord) -> None:
        """Take one completed step."""

    def close(self) -> None:
        """Write out what is left: the record ends."""
