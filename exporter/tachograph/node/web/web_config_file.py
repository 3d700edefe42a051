"""The web configuration in use, which follows its files: certificates are renewed while a server runs."""

from __future__ import annotations

import logging
from pathlib import Path

from tachograph.node.config_file import ConfigError
from tachograph.node.web.web_config import WebConfig, read_web_config

_log = logging.getLogger(__name__)


class WebConfigFile:
    """The web configuration, reloaded when one of its files changes; the last valid one stays in use.

    So it does where the file is empty, as while it is being written: nobody gets in without a password for a moment.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.current = WebConfig() if path is None else read_web_config(path)
        self._seen = self._state()

    def refresh(self, *, force: bool = False) -> bool:
        """Reload the files if they changed; return whether there is a new configuration."""
        if self._path is None or (self._state() == self._seen and not force):
            return False
        self._seen = self._state()
        if _is_empty(self._path):
            _log.error("web configuration is empty: the previous one stays in use", extra={"file": self._path})
            return False
        try:
            self.current = read_web_config(self._path)
        except ConfigError as error:
            _log.error("web configuration not reloaded: the previous one stays in use", extra={"faults": str(error)})
            return False
        self._seen = self._state()  # it may name other files now
        _log.info("web configuration reloaded", extra={"file": self._path})
        return True

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self.current.files]


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
