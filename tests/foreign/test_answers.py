"""Whatever a server that others run may answer, every command that asks it says one line, never a traceback."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from tachograph import __main__ as commands
from tachograph.dashboards import check, proxy
from tachograph.servers import http_client
from tachograph.servers.http_client import HttpError, HttpResponse, ask
from tachograph.servers.prometheus_api import Prometheus, PrometheusError

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
HANG = b"<hang>"


def body(words: bytes) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n" % len(words) + words


ANSWERS = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no status": b"HTTP/1.1 \x1b[2J\r\n\r\n",
    "a status of text": b"HTTP/1.1 abc OK\r\n\r\n",
    "a long status line": b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n\r\n",
    "a long header": OK + b"X: " + b"x" * 70_000 + b"\r\n\r\n{}",
    "many headers": OK + b"".join(b"X-%d: 1\r\n" % i for i in range(200)) + b"\r\n{}",
    "headers that are none": b"HTTP/1.1 200 OK\r\n\x00\x1b[2J\r\n: x\r\n\r\n{}",
    "half an answer": OK + b"Content-Length: 1000\r\n\r\n{",
    "a negative length": OK + b"Content-Length: -1\r\n\r\n{",
    "a length of text": OK + b"Content-Length: lots\r\n\r\n{",
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a huge length": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{",
    "a chunk of no size": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "a chunk cut off": OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{}",
    "no gzip": OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "no text": body(b"\xff\xfe\x00"),
    "no JSON": body(b"<html>\x1b[2J</html>"),
    "deep JSON": body(b"[" * 100_000 + b"]" * 100_000),
    "a long number": body(b'{"status":"success","data":' + b"9" * 10_000 + b"}"),
    "JSON of another form": body(b'{"status":"success","data":{"result":[{"metric":{"run":1},"value":[0]}]}}'),
    "no data": body(b'{"status":"success","data":null}'),
    "a list of numbers": body(b"[1, 2]"),
    "a list of silences that are none": body(b'[{"status":{"state":"active"},"matchers":[{}]}]'),
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\x1b[2J\r\nContent-Length: 0\r\n\r\n",
    "a refusal": b"HTTP/1.1 503 \x1b[2J\r\nContent-Length: 9\r\n\r\n\x1b]52;c;x\x07",
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
}
ASKING = {
    "top": ("top", "--once", "--exporter", "{url}"),
    "top RUN": ("top", "r", "--once", "--prometheus", "{url}"),
    "top without RUN": ("top", "--prometheus", "{url}"),
    "silence --list": ("silence", "--list", "--alertmanager", "{url}"),
    "silence": ("silence", "r", "--for", "1h", "--why", "w", "--by", "b", "--alertmanager", "{url}"),
    "silence --expire": ("silence", "--expire", "1", "--alertmanager", "{url}"),
    "report": ("report", "r", "--out", "{folder}/out.html", "--prometheus", "{url}"),
}


def refused(command: str, url: str, folder: Path, capsys: pytest.CaptureFixture[str], words: str = "") -> None:
    """Run a command; it must end with status 1, and with one printable line on stderr."""
    arguments = [part.format(url=url, folder=folder) for part in ASKING[command]]
    assert commands.main(arguments) == 1, command
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("\n")
    assert said.err[:-1].isprintable(), said.err
    assert len(said.err) < 500
    assert words in said.err


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_command_says_in_one_line_what_is_wrong(
    answering: Callable[..., str], answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A status that is not 0, one line without a control character, and no file."""
    url = answering(ANSWERS[answer])
    for command in ASKING:
        refused(command, url, tmp_path, capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_viewer_hands_on_an_error(answering: Callable[..., str], answer: str) -> None:
    """A panel is shown the reason, with a status of the viewer's own; the check says what is wrong."""
    url = answering(ANSWERS[answer])
    found = proxy.fetch(url, "/api/v1/query", "query=up", None, timeout=5)
    if found.status != 200:  # what is JSON to look at is the browser's to read
        assert (found.status, json.loads(found.body)["status"]) == (502, "error")
        assert json.loads(found.body)["error"].isprintable()
    problem = check.problem(Prometheus(url, timeout=5), "r", 0, 1)
    assert problem is not None
    assert problem.about == "prometheus"


@pytest.mark.parametrize("answer", [HANG, OK + HANG, OK + b"Content-Length: 10\r\n\r\n{" + HANG])
def test_a_host_that_never_ends_costs_the_timeout(answering: Callable[..., str], answer: bytes) -> None:
    """Neither silence before the answer nor in the middle of it holds anybody up."""
    with pytest.raises(HttpError, match=r"timed out"):
        ask(answering(answer), 0.2)


def test_an_answer_that_drips_is_given_up() -> None:
    """The timeout is for the whole body: a byte now and then does not renew it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(OK + b"\r\n")
                try:
                    while True:
                        connection.sendall(b" ")
                        time.sleep(0.02)
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(HttpError, match=r"timed out: the response is not complete after 2 s"):
            ask(url, 2)
        thread.join(30)


def test_a_body_is_bounded(answering: Callable[..., str]) -> None:
    """More than was allowed is not kept, packed or not; a bomb of gzip counts as what it unpacks to."""
    large = gzip.compress(b" " * (8 << 20))
    packed = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(large) + large
    assert len(ask(answering(packed), 10).body) == 8 << 20
    for words in (packed, body(b" " * (8 << 20)), OK + b"\r\n" + b" " * (8 << 20)):
        with pytest.raises(HttpError, match="larger than 4 MiB"):
            ask(answering(words), 10, most=4 << 20)
    assert ask(answering(packed), 10, most=4 << 20, packed=True) == HttpResponse(
        200, "OK", "application/json", large, encoding="gzip"
    )


def test_a_redirect_is_not_followed(answering: Callable[..., str]) -> None:
    """The target of a redirect is named, not requested: a server must not choose where this machine connects."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0)
        where = f"http://127.0.0.1:{other.getsockname()[1]}/"
        for status in (301, 302, 303, 307, 308):
            url = answering(b"HTTP/1.1 %d Moved\r\nLocation: %s\r\n\r\n" % (status, where.encode()))
            with pytest.raises(PrometheusError, match=f"it redirects to {where}"):
                Prometheus(url).check()
            assert where in json.loads(proxy.fetch(url, "/api/v1/query", "", None).body)["error"]
        with pytest.raises(BlockingIOError):
            other.accept()


def test_no_proxy_for_this_machine(
    answering: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A proxy of the environment would be asked for a loopback address of its own; for other hosts it is used."""
    elsewhere = answering(b"HTTP/1.1 418 Proxy\r\nContent-Length: 0\r\n\r\n")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, elsewhere)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    url = answering(body(b"{}"))
    assert ask(url, 10).status == 200
    assert ask(url.replace("127.0.0.1", "localhost"), 10).status == 200
    assert ask("http://prometheus.invalid:9090", 10).status == 418


def test_a_password_in_a_url_is_sent_and_never_shown(answering: Callable[..., str]) -> None:
    """Not in an error, not in the viewer's page."""
    url = answering(ANSWERS["no JSON"]).replace("//", "//ada:hunter2@")
    with pytest.raises(PrometheusError) as raised:
        Prometheus(url).check()
    assert "127.0.0.1" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert b"hunter2" not in proxy.fetch(url, "/api/v1/query", "", None).body
    assert "hunter2" not in json.dumps(check.check(Prometheus(url), None, 0, 1))


def test_tls_that_fails(answering: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """An unknown authority, a wrong name and missing TLS have different messages; a known authority is accepted."""
    authority = trustme.CA()
    urls = {}
    for name in ("127.0.0.1", "other.example"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        urls[name] = answering(body(b"{}"), context)
    for command in ASKING:
        refused(command, urls["127.0.0.1"], tmp_path, capsys, "its certificate is not accepted: ")
    plain = answering(body(b"{}")).replace("http:", "https:")
    for command in ASKING:
        refused(command, plain, tmp_path, capsys, "TLS failed: ")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert ask(urls["127.0.0.1"], 10).status == 200
    with pytest.raises(HttpError, match="its certificate is not accepted: IP address mismatch"):
        ask(urls["other.example"], 10)


def test_an_answer_may_be_as_large_as_the_largest_run_needs() -> None:
    """16,384 series of 240 samples, 28 bytes each."""
    assert http_client.MOST_BYTES > 16_384 * 240 * 28
