"""`tachograph dashboards`: show the dashboards in a browser with data from Prometheus, without Grafana."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Sequence

from tachograph.command_line import CommandParser
from tachograph.dashboards.bundle import Bundle, BundleError, find
from tachograph.dashboards.server import Viewer
from tachograph.servers.http_client import without_password
from tachograph.servers.prometheus_api import (
    DEFAULT_PORT,
    DEFAULT_URL,
    ENVIRONMENT,
    Prometheus,
    PrometheusError,
    default_url,
)
from tachograph.servers.server_address import is_loopback, listen_address, server_url
from tachograph.text.printable import printable
from tachograph.text.wrapping import fitted

LISTEN = "127.0.0.1:10025"
"""Its own, beside the exporter's: 3000 is Grafana's."""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph dashboards",
        description="Show the dashboards in a browser with data from Prometheus. A viewer: nothing can be edited.",
        statuses={0: "ended by Ctrl-C", 1: "nothing can be served: the text says why", 2: "wrong arguments"},
    )
    parser.add_argument(
        "--prometheus",
        default=default_url(),
        type=_url,
        metavar="ADDRESS",
        help=f"HOST, HOST:PORT or a URL (default: ${ENVIRONMENT}, or {DEFAULT_URL})",
    )
    parser.add_argument("--listen", default=LISTEN, type=_address, metavar="HOST:PORT", help=f"default: {LISTEN}")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="another host name to accept besides localhost (repeatable)",
    )
    parser.add_argument("--open", action="store_true", help="open the browser")
    return parser


def _url(text: str) -> str:
    try:
        return server_url(text, DEFAULT_PORT)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text.rpartition('@')[2]!r}: {error}") from error


def _address(text: str) -> tuple[str, int]:
    try:
        host, port = listen_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return host or "127.0.0.1", port


def main(arguments: Sequence[str]) -> int:
    """Serve until interrupted; return the exit status: 0, 1 if nothing can be served, 2 for wrong arguments."""
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        found = find()
    except BundleError as error:
        return _fail(str(error))
    return serve(found, given.listen, given.prometheus, names=given.host, browser=given.open)


def serve(
    bundle: Bundle, address: tuple[str, int], prometheus: str, *, names: Sequence[str] = (), browser: bool = False
) -> int:
    """Serve a viewer until interrupted; return 1 if the address is not available."""
    try:
        viewer = Viewer(address, bundle, prometheus, frozenset(name.lower() for name in names))
    except OSError as error:
        return _fail(
            f"cannot listen on {address[0]}:{address[1]}: {error.strerror}; choose another with --listen HOST:PORT"
        )
    with viewer:
        _announce(viewer, prometheus, browser=browser)
        try:
            viewer.serve_forever()
        except KeyboardInterrupt:
            print()  # noqa: T201  (after the terminal's ^C)
    return 0


def _announce(viewer: Viewer, prometheus: str, *, browser: bool) -> None:
    host, port = str(viewer.server_address[0]), viewer.server_address[1]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    shown = without_password(prometheus)
    if not is_loopback(host):
        _say(f"listening on {host}: anyone who can reach it can read all data of {shown}")
    try:
        Prometheus(prometheus, timeout=3).check()
    except PrometheusError as error:
        _say(f"{error} (the page shows this, too, and recovers by itself)")
    print(fitted(f"dashboards of {shown}: {url} (press Ctrl-C to stop)"), flush=True)  # noqa: T201
    if browser:
        webbrowser.open(url)


def _say(text: str) -> None:
    print(printable(f"tachograph dashboards: {text}"), file=sys.stderr)  # noqa: T201


def _fail(text: str) -> int:
    _say(text)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
