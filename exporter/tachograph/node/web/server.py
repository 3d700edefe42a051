"""The HTTP server: /metrics, /api/node, the health pages and the status page, each rendered once per second at most."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from tachograph.catalog import index as catalog
from tachograph.node.exposition import Exposition, Form, negotiate
from tachograph.node.histograms import HistogramSample
from tachograph.node.log import OncePerMinute
from tachograph.node.samples import Sample
from tachograph.node.web.http_connections import KEEP_ALIVE_SECONDS, HttpConnection, HttpConnections, Security
from tachograph.node.web.http_log import HttpErrors
from tachograph.node.web.listening_sockets import listening_sockets
from tachograph.node.web.web_access import Passwords, TooManyChecksError, WebConfigFile, credentials, is_local

REFUSALS = ("node_limit", "work_limit", "descriptors", "slow", "tls", "auth")
"""Those of catalog.CONNECTION_REFUSALS that apply to HTTP."""

# Level 1: a third larger than level 9 and a fifth of its time.
_GZIP_LEVEL = 1
_LARGE_PAGE = 64 * 1024
"""Pages of at least this size are compressed in a thread, since that takes more than a millisecond."""
_MAX_LINE = 4096
"""Maximum bytes of the request line, and of one header."""
_LAST_ANSWER_SECONDS = 0.3
_CLOSED_POLICY = {
    # Ranks choose much of the text on the page; if any of it ever escaped its quotes, it could do nothing.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

_log = logging.getLogger(__name__)

Routes = Callable[[Callable[[web.Request], bool]], Sequence[web.RouteDef]]
"""Returns routes, given what says whether the reader of a request may see what ranks said of themselves."""


@dataclass(frozen=True)
class Pages:
    """The sources of the pages; none of them blocks, and a page is cached while `generation` stays the same."""

    samples: Callable[[], Iterable[Sample | HistogramSample]]
    status_page: Callable[[bool], str]
    """Renders the status page; the argument says whether the reader may see the ranks' failure messages."""
    judgement: Callable[[bool], str]
    """Renders `/api/node` for the same readers."""
    ready: Callable[[], tuple[bool, str]]
    """Whether ranks can connect, and the state of each part in words."""
    generation: Callable[[], int]


class SharedPages:
    """Renders each page at most once per generation, and serves it to all who ask for it in that generation."""

    def __init__(self, generation: Callable[[], int]) -> None:
        self._generation = generation
        self._of: int | None = None
        self._made: dict[Hashable, asyncio.Future[bytes]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the page of that key; a request that comes while it is being made waits for the same one."""
        if (now := self._generation()) != self._of:
            self._of, self._made = now, {}
        page = self._made.get(key)
        if page is None:
            page = self._made[key] = asyncio.ensure_future(make())
        return await asyncio.shield(page)  # one client that leaves must not take it from the others


class Server:
    """The HTTP server of one exporter, on a host's addresses or on inherited sockets."""

    def __init__(
        self,
        host: str | None,
        port: int,
        pages: Pages,
        *,
        most: int = 64,
        web_config: Path | None = None,
        inherited: Callable[[], list[socket.socket]] | None = None,
        routes: Routes = lambda _: (),
    ) -> None:
        self._routes = routes
        self._sockets = inherited or (lambda: listening_sockets(host, port))
        self._pages = pages
        self._shared = SharedPages(pages.generation)
        self._exposition = Exposition()
        self._lines = OncePerMinute(_log, time.monotonic)
        self._connections = HttpConnections(most, self._lines)
        self._passwords = Passwords()
        self._use(WebConfigFile(web_config))
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_LAST_ANSWER_SECONDS,
            logger=HttpErrors(self._lines),
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            lingering_time=0,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
        )

    async def open(self) -> str:
        """Start serving; return the address in use. Raise OSError or NoSocketError if there is none."""
        sockets = self._sockets()
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections.serve(sockets, self._runner.server)
        return _in_words(sockets[0].getsockname())

    async def close(self) -> None:
        """Stop serving; responses in progress get a moment to finish."""
        self._connections.stop()
        await self._runner.cleanup()
        self._connections.close()
        self._passwords.close()

    def tick(self) -> None:
        """Close connections of slow clients, and reload changed certificates; call it about once a second."""
        self._connections.tick()
        if self._web.refresh():
            self._use(self._web)

    def reload(self, most: int, web_config: Path | None) -> None:
        """Apply new settings while serving; raise ConfigError if the web configuration is faulty."""
        self._use(WebConfigFile(web_config))
        self._connections.most = most

    def samples(self) -> Iterator[Sample]:
        """Yield the number of connections, and of those refused, by reason."""
        yield Sample(catalog.CONNECTIONS, ("http",), len(self._connections))
        for reason in REFUSALS:
            yield Sample(catalog.CONNECTIONS_REFUSED, ("http", reason), self._connections.refused[reason])

    def _use(self, web_config: WebConfigFile) -> None:
        self._web = web_config
        self._connections.security = Security(web_config.current.context, web_config.current.client_names)
        self._passwords.forget()

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard()])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/", partial(self._for_reader, "text/html", self._pages.status_page))
        app.router.add_get("/api/node", partial(self._for_reader, "application/json", self._pages.judgement))
        app.router.add_get("/-/healthy", self._healthy)
        app.router.add_get("/-/ready", self._ready)
        app.add_routes(self._routes(self._is_trusted))
        return app

    def _guard(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        @web.middleware
        async def guard(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            """Check the password, add the configured headers, and mark the start and end of an answer."""
            protocol = request.transport.get_protocol() if request.transport is not None else None
            connection = protocol if isinstance(protocol, HttpConnection) else None
            if connection is not None:
                connection.begin()
            try:
                response = await self._refusal(request, connection) or await handler(request)
            except web.HTTPException as found:
                response = found
            finally:
                if connection is not None:
                    connection.end()
            for name, text in self._web.current.headers.items():
                response.headers.setdefault(name, text)
            if isinstance(response, web.HTTPException):
                raise response
            return response

        return guard

    async def _refusal(self, request: web.Request, connection: HttpConnection | None) -> web.Response | None:
        """Return the answer to a request without the right password, None if it is right or not needed."""
        users = self._web.current.users
        if not users:
            return None
        given, group = credentials(request), connection.group if connection is not None else ""
        try:
            if given is not None and await self._passwords.are_right(users, *given, group):
                return None
        except TooManyChecksError:
            self._connections.refused["auth"] += 1
            return web.Response(
                status=429, text="too many passwords to check: try again\n", headers={"Retry-After": "1"}
            )
        self._connections.refused["auth"] += 1
        self._lines.warning("HTTP request without the right password" if given else "HTTP request without a password",
                            peer=group)  # fmt: skip
        headers = {"WWW-Authenticate": 'Basic realm="tachograph", charset="UTF-8"'}
        return web.Response(status=401, text="unauthorized: user name and password are needed\n", headers=headers)

    async def _metrics(self, request: web.Request) -> web.Response:
        form = negotiate(request.headers.get("Accept", ""))
        headers = {"Content-Type": form.content_type, "Vary": "Accept, Accept-Encoding"}
        if _accepts_gzip(request.headers.get("Accept-Encoding", "")):
            headers["Content-Encoding"] = "gzip"
            body = await self._shared.get((form, "gzip"), lambda: self._compressed(form))
        else:
            body = await self._text(form)
        return web.Response(body=body, headers=headers)

    async def _text(self, form: Form) -> bytes:
        async def make() -> bytes:
            return self._exposition.render(self._pages.samples(), form)

        return await self._shared.get((form, "text"), make)

    async def _compressed(self, form: Form) -> bytes:
        text = await self._text(form)
        if len(text) < _LARGE_PAGE:
            return gzip.compress(text, _GZIP_LEVEL)
        return await asyncio.to_thread(gzip.compress, text, _GZIP_LEVEL)

    async def _for_reader(self, content_type: str, render: Callable[[bool], str], request: web.Request) -> web.Response:
        """Return a page that only a trusted reader sees all of."""
        is_trusted = self._is_trusted(request)

        async def make() -> bytes:
            return render(is_trusted).encode()

        body = await self._shared.get((content_type, is_trusted), make)
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_CLOSED_POLICY)

    def _is_trusted(self, request: web.Request) -> bool:
        return self._web.current.is_closed or is_local(request)

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="healthy: the exporter answers\n")

    async def _ready(self, _: web.Request) -> web.Response:
        is_ready, text = self._pages.ready()
        return web.Response(text=text, status=200 if is_ready else 503)


def _accepts_gzip(header: str) -> bool:
    for entry in header.split(","):
        coding, *parameters = (part.strip().lower() for part in entry.split(";"))
        if coding in ("gzip", "*"):
            return not any(text in ("q=0", "q=0.0", "q=0.00", "q=0.000") for text in parameters)
    return False


def _in_words(address: object) -> str:
    if not isinstance(address, tuple):
        return str(address)
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
