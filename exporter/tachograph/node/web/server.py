"""The HTTP server: /metrics, /api/node, the health pages and the status page, each rendered once per second at most."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from tachograph.catalog import index as catalog
from tachograph.node.exposition import PROTOBUF, Exposition, Form, negotiate
from tachograph.node.histograms import HistogramSample
from tachograph.node.log import OncePerMinute
from tachograph.node.protobuf import ProtobufExposition
from tachograph.node.ranks.shares import Share
from tachograph.node.samples import Sample
from tachograph.node.unix_socket import UnixSocket
from tachograph.node.web.http_connections import KEEP_ALIVE_SECONDS, HttpConnection, HttpConnections, Security
from tachograph.node.web.http_log import HttpErrors
from tachograph.node.web.listening_sockets import listening_sockets
from tachograph.node.web.private import MayRead
from tachograph.node.web.readers import NO_READERS, STRANGER, Reader, SiteReaders
from tachograph.node.web.web_access import (
    Passwords,
    TooManyChecksError,
    credentials,
    is_rebound,
)
from tachograph.node.web.web_config_file import WebConfigFile

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

ReaderOf = Callable[[web.Request], Reader]
Routes = Callable[[ReaderOf], Sequence[web.RouteDef]]
"""Returns routes, given what says who the reader of a request is."""

FOR_ANY_NAME = ("/metrics", "/-/healthy", "/-/ready")
"""Pages that are served whatever name a request gives this machine."""

LONGEST_WAIT_SECONDS = 0.5
"""A user who has used up the share of CPU time by more than this gets no page of their own."""


@dataclass(frozen=True)
class Pages:
    """The sources of the pages; none of them blocks, and a page is cached while `generation` stays the same."""

    samples: Callable[[], Iterable[Sample | HistogramSample]]
    status_page: Callable[[MayRead], str]
    """Renders the status page with what is private of the runs of those uids."""
    api_node: Callable[[MayRead], str]
    """Renders `/api/node` in the same way."""
    ready: Callable[[], tuple[bool, str]]
    """Whether ranks can connect, and the state of each part in words."""
    generation: Callable[[], int]
    share_of: Callable[[int], Share | None] = lambda _: None
    """The share of a uid that has a run here, None for others, who see what strangers see."""


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
        readers: SiteReaders = NO_READERS,
        names: Collection[str] = (),
        inherited: Callable[[], list[socket.socket]] | None = None,
        routes: Routes = lambda _: (),
    ) -> None:
        self._routes = routes
        self._sockets = inherited or (lambda: listening_sockets(host, port))
        self._pages = pages
        self._shared = SharedPages(pages.generation)
        self._exposition, self._protobuf = Exposition(), ProtobufExposition()
        self._lines = OncePerMinute(_log, time.monotonic)
        self._connections = HttpConnections(most, self._lines)
        self._passwords = Passwords()
        self._site, self._names = readers, names
        self._own: UnixSocket | None = None
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

    def open_for_users(self, path: Path, mode: int) -> None:
        """Serve on a unix socket as well, where the kernel says who reads; raise SocketPathError."""
        self._own = UnixSocket(path, mode, "--web.socket")
        self._connections.serve_users(self._own.sock)

    async def close(self) -> None:
        """Stop serving; responses in progress get a moment to finish."""
        self._connections.stop()
        await self._runner.cleanup()
        self._connections.close()
        self._passwords.close()
        if self._own is not None:
            self._own.remove()

    def tick(self) -> None:
        """Close connections of slow clients, and reload changed certificates; call it about once a second."""
        self._connections.tick()
        if self._web.refresh():
            self._use(self._web)

    def reload(self, most: int, web_config: Path | None, readers: SiteReaders) -> None:
        """Apply new settings while serving; raise ConfigError if the web configuration is faulty."""
        self._use(WebConfigFile(web_config))
        self._site = readers
        self._connections.most = most

    def samples(self) -> Iterator[Sample]:
        """Yield the number of connections, and of those refused, by reason."""
        yield Sample(catalog.CONNECTIONS, ("http",), len(self._connections))
        for reason in REFUSALS:
            yield Sample(catalog.CONNECTIONS_REFUSED, ("http", reason), self._connections.refused[reason])

    def _use(self, web_config: WebConfigFile) -> None:
        self._web = web_config
        current = web_config.current
        self._connections.security = Security(current.context, current.client_names, bool(current.users))
        self._passwords.forget()

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard()])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/", partial(self._for_reader, "text/html", self._pages.status_page))
        app.router.add_get("/api/node", partial(self._for_reader, "application/json", self._pages.api_node))
        app.router.add_get("/-/healthy", self._healthy)
        app.router.add_get("/-/ready", self._ready)
        app.add_routes(self._routes(_reader_of))
        return app

    def _guard(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        @web.middleware
        async def guard(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            """Find out who asks, add the configured headers, and mark the start and end of an answer."""
            connection = _connection_of(request)
            if connection is not None:
                connection.begin()
            try:
                response = await self._identified(request, connection) or await handler(request)
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

    async def _identified(self, request: web.Request, connection: HttpConnection | None) -> web.Response | None:
        """Find out who asks; return the answer to a request that is refused."""
        if connection is None:  # it has ended meanwhile
            return None
        if connection.secure.needs_password:
            return await self._by_password(request, connection)
        if connection.user is not None:
            connection.reader = connection.user.reader(self._site)
        elif request.transport is not None and request.transport.get_extra_info("peercert"):
            connection.reader = Reader(f"certificate {connection.group}", reads_all=True)
        elif request.path not in FOR_ANY_NAME and is_rebound(request, self._names):
            return web.Response(status=403, text="refused: this machine has another name; ask for localhost\n")
        else:
            connection.reader = Reader(connection.group)
        return None

    async def _by_password(self, request: web.Request, connection: HttpConnection) -> web.Response | None:
        """Find out who asks by a password; return the answer to a request without the right one."""
        users, given, group = self._web.current.users, credentials(request), connection.group
        try:
            if given is not None and await self._passwords.are_right(users, *given, group):
                connection.reader = Reader(f"user {given[0]}", reads_all=True)
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
            samples = self._pages.samples()
            return self._protobuf.render(samples) if form is PROTOBUF else self._exposition.render(samples, form)

        return await self._shared.get((form, "text"), make)

    async def _compressed(self, form: Form) -> bytes:
        text = await self._text(form)
        if len(text) < _LARGE_PAGE:
            return gzip.compress(text, _GZIP_LEVEL)
        return await asyncio.to_thread(gzip.compress, text, _GZIP_LEVEL)

    async def _for_reader(
        self, content_type: str, render: Callable[[MayRead], str], request: web.Request
    ) -> web.Response:
        """Return a page with what its reader may see; all who may see the same share one."""
        reader = _reader_of(request)
        share = None if reader.reads_all or reader.uid is None else self._pages.share_of(reader.uid)
        if share is not None and share.wait_seconds() > LONGEST_WAIT_SECONDS:
            text = "your pages cost the exporter more than your share: wait a second\n"
            return web.Response(status=429, text=text, headers={"Retry-After": "1"})
        as_seen_by = reader if reader.reads_all or share is not None else STRANGER

        async def make() -> bytes:
            start = time.thread_time()
            page = render(as_seen_by.may_read).encode()
            if share is not None:
                share.spend(time.thread_time() - start)
            return page

        key = (content_type, as_seen_by.reads_all, as_seen_by.uid if share is not None else None)
        body = await self._shared.get(key, make)
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_CLOSED_POLICY)

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="healthy: the exporter answers\n")

    async def _ready(self, _: web.Request) -> web.Response:
        is_ready, text = self._pages.ready()
        return web.Response(text=text, status=200 if is_ready else 503)


def _connection_of(request: web.Request) -> HttpConnection | None:
    protocol = request.transport.get_protocol() if request.transport is not None else None
    return protocol if isinstance(protocol, HttpConnection) else None


def _reader_of(request: web.Request) -> Reader:
    connection = _connection_of(request)
    return STRANGER if connection is None else connection.reader


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
