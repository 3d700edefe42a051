"""Tachograph: the recorder that rides with a distributed training run."""

from typing import TYPE_CHECKING

from tachograph._version import __version__

if TYPE_CHECKING:
    from tachograph.client.hello.resume_from import resume_from
    from tachograph.client.recorder import Recorder

__all__ = ["Recorder", "__version__", "resume_from"]


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return __all__


def __getattr__(name: str) -> object:
    """Load `Recorder` or `resume_from` on first access: the exporter and its worker never load the client."""
    if name == "Recorder":
        from tachograph.client.recorder import Recorder

        return globals().setdefault(name, Recorder)
    if name == "resume_from":
        from tachograph.client.hello.resume_from import resume_from

        return globals().setdefault(name, resume_from)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
