"""What the client says in the log: one line about each subject in the life of a process, never more."""

from __future__ import annotations

_said: set[str] = set()


def notice(subject: str, text: str) -> None:
    """Log `text` as a warning of the logger `tachograph`, unless something was said about `subject` before."""
    if subject in _said:
        return
    _said.add(subject)
    import logging  # late: it costs more than the rest of the client's imports, and most runs never need it

    logging.getLogger("tachograph").warning(text)
