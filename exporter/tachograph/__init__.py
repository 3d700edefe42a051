"""Tachograph: the recorder that rides with a distributed training run."""

from typing import TYPE_CHECKING

from tachograph._version import __version__

if TYPE_CHECKING:
    from tachograph.client.recorder import Recorder

__all__ = ["Recorder", "__version__"]


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return __all__


def __getattr__(name: str) -> object:
    """Load `Recorder` on first access: the exporter and its worker never load the client."""
    if name != "Recorder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tachograph.client.recorder import Recorder

    globals()["Recorder"] = Recorder
    return Recorder
