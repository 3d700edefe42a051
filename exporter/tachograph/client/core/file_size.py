"""The largest file that this process may write: one byte more is a signal, SIGXFSZ, which may end it."""

from __future__ import annotations


def may_write(size: int) -> bool:
    """Return whether a file may have so many bytes; the limit can change at any time (`setrlimit`)."""
    import resource  # late: a process without an exporter needs it only for a box

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return limit == resource.RLIM_INFINITY or size <= limit
