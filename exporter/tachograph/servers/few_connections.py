"""Threads for the connections of a server of the standard library, but for a few only: further ones are closed."""

from __future__ import annotations

import socketserver
import threading
from typing import Any


class FewConnections(socketserver.ThreadingMixIn):
    """Serves at most `most` connections at a time, each in a thread of its own; before a server class."""

    daemon_threads = True
    most: int

    def __init__(self, *place_and_handler: Any) -> None:  # noqa: ANN401 - as the server class takes them
        self._places = threading.BoundedSemaphore(self.most)
        super().__init__(*place_and_handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver has it
        """Begin to serve a connection; close it at once if there are too many."""
        if not self._places.acquire(blocking=False):
            self.refused(client_address)
            self.shutdown_request(request)  # type: ignore[attr-defined]
            return
        try:
            self.admitted(request)
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - see above
        """Serve a connection to its end."""
        try:
            self.serve(request, client_address)
        finally:
            self._leave(request)

    def serve(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - see above
        """Serve a connection in its thread."""
        super().process_request_thread(request, client_address)

    def refused(self, client_address: object) -> None:
        """Note a connection beyond the limit; nothing by default."""

    def admitted(self, request: Any) -> None:  # noqa: ANN401 - see above
        """Note a connection that is about to be served; nothing by default."""

    def left(self, request: Any) -> None:  # noqa: ANN401 - see above
        """Note a connection that is served no more; nothing by default."""

    def _leave(self, request: Any) -> None:  # noqa: ANN401 - see above
        self.left(request)
        self._places.release()
