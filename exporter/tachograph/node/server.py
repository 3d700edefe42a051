"""The HTTP side: /metrics, the health pages and the landing page, all served from memory."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiohttp import web

from tachograph.node.exposition import negotiate, render
from tachograph.node.histograms import HistogramSample
from tachograph.node.readings import Sample

# Level 1: a third larger than level 9 and a fifth of its time, and the loop waits meanwhile.
_GZIP_LEVEL = 1
_CLOSED_POLICY = {
    # Ranks choose much of the text on the page; should any of it ever get out of its quotes, it can do nothing.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Pages:
    """What the server serves; each is called per request and must not wait for anything."""

    samples: Callable[[], Iterable[Sample | HistogramSample]]
    landing: Callable[[], str]
    ready: Callable[[], tuple[bool, str]]
    """Whether ranks can connect, and the state of each part in words."""


def application(pages: Pages) -> web.Application:
    """Return the web application over the pages."""

    async def metrics(request: web.Request) -> web.Response:
        form = negotiate(request.headers.get("Accept", ""))
        body = render(pages.samples(), form)
        headers = {"Content-Type": form.content_type, "Vary": "Accept, Accept-Encoding"}
        if _accepts_gzip(request.headers.get("Accept-Encoding", "")):
            body = gzip.compress(body, _GZIP_LEVEL)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    async def landing(_: web.Request) -> web.Response:
        return web.Response(text=pages.landing(), content_type="text/html", headers=_CLOSED_POLICY)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="healthy: the exporter answers\n")

    async def ready(_: web.Request) -> web.Response:
        is_ready, text = pages.ready()
        return web.Response(text=text, status=200 if is_ready else 503)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/", landing)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    return app


def _accepts_gzip(header: str) -> bool:
    for entry in header.split(","):
        coding, *parameters = (part.strip().lower() for part in entry.split(";"))
        if coding in ("gzip", "*"):
            return not any(text in ("q=0", "q=0.0", "q=0.00", "q=0.000") for text in parameters)
    return False


class Server:
    """The HTTP server of one exporter."""

    def __init__(self, host: str | None, port: int, pages: Pages) -> None:
        self._host = host
        self._port = port
        self._runner = web.AppRunner(application(pages), access_log=None, handle_signals=False, shutdown_timeout=0.3)

    async def open(self) -> tuple[str, int]:
        """Serve; return the address in use. Raise OSError where it cannot be had."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, backlog=128).start()
        host, port, *_ = self._runner.addresses[0]
        return host, port

    async def close(self) -> None:
        """Stop serving; a response under way has a moment to end."""
        await self._runner.cleanup()
