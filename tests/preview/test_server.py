"""The viewer's server over real sockets: what it serves, what it forwards, and its errors."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.dashboards import command, server
from tachograph.dashboards.bundle import Bundle, BundleError, find
from tachograph.servers.server_address import DEFAULT_PORT

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:9"  # the discard port: nothing listens


def ask(
    url: str, path: str, *, method: str = "GET", body: bytes | None = None, host: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send one request exactly as given; return status, headers and body."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host if host is not None else where.netloc)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


@pytest.fixture
def viewer(view: Callable[..., str], small_bundle: Bundle, prometheus: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that serves the small viewer with such a Prometheus."""

    def served(**facts: object) -> tuple[str, list[tuple[str, str, bytes]]]:
        url, asked = prometheus(**facts)
        return view(small_bundle, url), asked

    return served


@pytest.mark.parametrize("path", ["/", "/d/tachograph-run", "/d/tachograph-run/run?var-run=a&from=now-1h&to=now"])
def test_every_dashboard_address_is_the_page(viewer: Callable[..., Any], path: str) -> None:
    """An alert's dashboard_url opens the viewer if grafana_url points at it; the page loads nothing from elsewhere."""
    status, headers, body = ask(viewer()[0], path)
    assert status == 200
    assert b"<title>viewer</title>" in body
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe-eval" not in policy


def test_files_of_the_viewer_and_no_others(viewer: Callable[..., Any]) -> None:
    """A file of the viewer is served, a packed one as such; a path that leads out of the viewer is not found."""
    url, _ = viewer()
    assert ask(url, "/assets/boot.js")[2] == b"boot()"
    status, headers, body = ask(url, "/assets/main.js")
    assert (status, headers["Content-Encoding"], body) == (200, "gzip", b"packed")
    for path in ("/../secret", "/%2e%2e/secret", "/assets/..%2f../secret", "/assets", "//etc/passwd", "/nothing"):
        assert ask(url, path)[0] == 404, path


def test_dashboards_are_the_committed_files(viewer: Callable[..., Any], small_bundle: Bundle) -> None:
    """The viewer shows the very files that Grafana imports; an unknown uid is not found."""
    url, _ = viewer()
    entries = json.loads(ask(url, "/api/dashboards")[2])
    assert {entry["uid"] for entry in entries} == set(small_bundle.by_uid())
    for uid, file in small_bundle.by_uid().items():
        assert ask(url, f"/api/dashboards/{uid}")[2] == file.read_bytes()
    assert ask(url, "/api/dashboards/nothing")[0] == 404


ALLOWED = (
    "query", "query_range", "series", "labels", "label/run/values", "rules", "metadata", "status/buildinfo",
)  # fmt: skip
REFUSED = (
    "/api/v1/admin/tsdb/delete_series", "/api/v1/admin/tsdb/snapshot", "/api/v1/write", "/api/v1/status/config",
    "/api/v1/status/flags", "/api/v1/targets", "/api/v1/alerts", "/api/v1/query/../admin/tsdb/snapshot",
    "/api/v1/label/a/b/values", "/api/v1/queryx", "/-/reload", "/-/quit", "/metrics", "/api/v2/query", "/",
)  # fmt: skip


def test_prometheus_is_asked_only_what_reads(viewer: Callable[..., Any]) -> None:
    """Queries, series, labels, rules and versions are forwarded unchanged; nothing else reaches Prometheus."""
    url, asked = viewer()
    for path in ALLOWED:
        assert ask(url, f"/api/prometheus/api/v1/{path}?query=up%7Ba%3D%22b%22%7D")[0] == 200
    assert asked == [("GET", f"/api/v1/{path}?query=up%7Ba%3D%22b%22%7D", b"") for path in ALLOWED]
    asked.clear()
    status, headers, body = ask(url, "/api/prometheus/api/v1/query", method="POST", body=b"query=up")
    assert (status, headers["Cache-Control"], json.loads(body)["status"]) == (200, "no-store", "success")
    assert asked == [("POST", "/api/v1/query", b"query=up")]
    asked.clear()
    for path in REFUSED:
        status, _, body = ask(url, f"/api/prometheus{path}", method="POST", body=b"")
        assert status == 403, path
        assert json.loads(body)["status"] == "error"
    assert not asked


def test_only_queries_are_posted_and_only_so_much(viewer: Callable[..., Any]) -> None:
    """A form elsewhere, without a length or beyond 1 MiB is refused before it is read."""
    url, asked = viewer()
    assert ask(url, "/api/dashboards", method="POST", body=b"")[0] == 405
    assert ask(url, "/api/prometheus/api/v1/query", method="POST")[0] == 413
    assert ask(url, "/api/prometheus/api/v1/query", method="DELETE")[0] == 501
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    connection.putrequest("POST", "/api/prometheus/api/v1/query")
    connection.putheader("Content-Length", str((1 << 20) + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert not asked


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:3000", "127.0.0.1:80", "[::1]:3000", "10.1.2.3", "cockpit:3000"]
)
def test_own_names_are_answered(view: Callable[..., str], small_bundle: Bundle, host: str) -> None:
    """Loopback, IP addresses and the names of --host are accepted with any port (a tunnel has its own)."""
    assert ask(view(small_bundle, NOWHERE, frozenset({"cockpit"})), "/", host=host)[0] == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:3000", "localhost.evil.example", "127.0.0.1.evil", "[::1"]
)
def test_other_names_are_refused(viewer: Callable[..., Any], host: str) -> None:
    """A page of another name that resolves to loopback (DNS rebinding) reads neither the viewer nor Prometheus."""
    url, asked = viewer()
    for path in ("/", "/api/dashboards", "/api/prometheus/api/v1/query?query=up", "/api/check?start=1&end=2"):
        assert ask(url, path, host=host)[0] == 421
    assert not asked


def problem(url: str, run: str = "") -> dict[str, Any] | None:
    words = urllib.parse.urlencode({"start": 1, "end": 2} | ({"run": run} if run else {}))
    status, _, body = ask(url, f"/api/check?{words}")
    assert status == 200
    return json.loads(body)["problem"]


def test_what_is_wrong_is_said(view: Callable[..., str], small_bundle: Bundle, viewer: Callable[..., Any]) -> None:
    """No Prometheus, an old one, one without our rules, one without a run: each has its own message."""
    assert problem(viewer()[0]) is None
    none = problem(view(small_bundle, NOWHERE))
    assert none
    assert none["about"] == "prometheus"
    assert f"no Prometheus at {NOWHERE}" in none["text"]
    old, bare = problem(viewer(version="2.30.1")[0]), problem(viewer(rules=("up:sum",))[0])
    assert old
    assert old["about"] == "rules"
    assert "2.30.1" in old["text"]
    assert "too old" in old["text"]
    assert bare
    assert bare["about"] == "rules"
    assert "none of our rules" in bare["text"]
    empty = problem(viewer(runs=(), now=())[0])
    assert empty
    assert (empty["about"], "no run at all" in empty["text"]) == ("empty", True)


def test_an_unknown_run_is_told_from_one_at_another_time(viewer: Callable[..., Any]) -> None:
    """An unknown run is reported with the nearest names; an earlier run has its own message."""
    url, _ = viewer(now=("llama-70b",))
    assert problem(url, "llama-70b") is None
    wrong = problem(url, "lama-70b")
    assert wrong
    assert (wrong["about"], wrong["nearest"][0]) == ("run", "llama-70b")
    assert "no run 'lama-70b'" in wrong["text"]
    earlier = problem(url, "llama-7b")
    assert earlier
    assert earlier["about"] == "range"


def test_prometheus_errors_reach_the_panel_in_words(view: Callable[..., str], small_bundle: Bundle) -> None:
    """A query that cannot be sent has the form of a Prometheus error: a panel shows the text."""
    status, _, body = ask(view(small_bundle, NOWHERE), "/api/prometheus/api/v1/query?query=up")
    assert status == 502
    assert f"no Prometheus at {NOWHERE}" in json.loads(body)["error"]


def test_a_check_without_times_is_refused(viewer: Callable[..., Any]) -> None:
    """The error for a missing parameter names it."""
    url, _ = viewer()
    for words in ("", "?start=1", "?start=a&end=b"):
        assert ask(url, f"/api/check{words}")[0] == 400


def test_without_a_viewer_the_next_step_is_said(tmp_path: Any) -> None:
    """The viewer of a wheel comes first, then that of a checkout; the error says whether it is unbuilt or missing."""
    with pytest.raises(BundleError, match="no viewer"):
        find(tmp_path / "viewer", [tmp_path / "grafana"])
    (tmp_path / "grafana" / "preview" / "out").mkdir(parents=True)
    with pytest.raises(BundleError, match=f"make -C {tmp_path} preview builds it, once"):
        find(tmp_path / "viewer", [tmp_path / "none", tmp_path / "grafana"])
    (tmp_path / "grafana" / "preview" / "out" / "index.html").touch()
    found = find(tmp_path / "viewer", [tmp_path / "none", tmp_path / "grafana"])
    assert found.dashboards == tmp_path / "grafana" / "dashboards"
    (tmp_path / "viewer").mkdir()
    (tmp_path / "viewer" / "index.html").touch()
    assert find(tmp_path / "viewer", [tmp_path / "grafana"]).viewer == tmp_path / "viewer"


@pytest.mark.parametrize("npm", [True, False])
def test_a_checkout_needs_no_node_js(tmp_path: Path, npm: bool) -> None:
    """`make preview` takes the PATH's, or brings one of PyPI's."""
    for program in ("sh", "make", "python3", "sed", *["npm"] * npm):
        found = shutil.which(program) or shutil.which("true")
        (tmp_path / program).symlink_to(found or "/bin/true")
    asked = [tmp_path / "make", "--dry-run", "--always-make", "preview"]
    done = subprocess.run(asked, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert ("--group node" in done.stdout) is not npm
    assert "npm run build" in done.stdout


def test_its_port_is_neither_grafanas_nor_the_exporters() -> None:
    """Whoever has a Grafana, and an exporter, starts it as well."""
    assert command.LISTEN.rpartition(":")[2] not in ("3000", str(DEFAULT_PORT))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "nonsense"], "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (["--prometheus", "localhost:port"], "'localhost:port': "),
        (["--prometheus", "file:///etc/passwd"], "'file:///etc/passwd': expected HOST, HOST:PORT or a URL"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments are reported in one line, with status 2."""
    assert command.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_taken_port_is_told(
    view: Callable[..., str], small_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    """A port in use is reported with what to do, without a traceback."""
    port = urllib.parse.urlsplit(view(small_bundle, NOWHERE)).port
    assert command.serve(small_bundle, ("127.0.0.1", port), NOWHERE) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def connected(url: str, said: bytes) -> socket.socket:
    """Open a connection and send some bytes."""
    where = urllib.parse.urlsplit(url)
    connection = socket.create_connection((where.hostname or "", where.port or 0), timeout=60)
    connection.sendall(said)
    return connection


def ended(connection: socket.socket) -> bool:
    """Wait until the other side closes the connection."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    return True


HALVES = (b"", b"GET / HTT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-1: ",
          b"POST /api/prometheus/api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nque")  # fmt: skip


@pytest.mark.parametrize("half", HALVES)
def test_who_does_not_ask_is_cut_off(viewer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, half: bytes) -> None:
    """Idle and slow connections hold threads for seconds, not for ever; half a form gets no response."""
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    url, asked = viewer()
    slow = [connected(url, half) for _ in range(server.CONNECTIONS)]
    for connection in slow:
        with connection:
            assert ended(connection)
    assert answered(url)
    assert not asked


def drip(connection: socket.socket) -> None:
    """Send a byte at intervals."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        connection.sendall(b"x")
        time.sleep(0.02)


def test_a_byte_now_and_then_does_not_renew_the_time(
    viewer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slowloris: a header that never ends is cut off like an idle connection."""
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    url, _ = viewer()
    with connected(url, b"GET / HTTP/1.1\r\nX: ") as connection, pytest.raises(ConnectionError):
        drip(connection)


def answered(url: str, within: float = 90) -> bool:
    """Whether a request gets a response, at the latest when another connection ends."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            return ask(url, "/")[0] == 200
        except (ConnectionError, http.client.HTTPException):
            time.sleep(0.02)
    return False


def test_connections_are_few(viewer: Callable[..., Any]) -> None:
    """A connection beyond the limit is closed at once and starts no thread; when one ends there is room again."""
    url, _ = viewer()
    held = [connected(url, b"") for _ in range(server.CONNECTIONS)]
    before = threading.active_count()
    for _ in range(50):
        with connected(url, b"") as connection:
            assert ended(connection)
    assert threading.active_count() <= before + server.CONNECTIONS
    for connection in held:
        connection.close()
    assert answered(url)


@pytest.mark.parametrize("length", ["-1", "abc", "\xb2", "9" * 5000, "1 1", "+5", "1048577"])
def test_a_length_that_is_none(viewer: Callable[..., Any], length: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It is refused with a message without control characters."""
    url, asked = viewer()
    where = f"POST /api/prometheus/api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    with connected(url, where.encode("latin-1")) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    with connected(url, b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert not asked
    assert capfd.readouterr() == ("", "")
