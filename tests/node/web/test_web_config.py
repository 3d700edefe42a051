"""TLS, client certificates, passwords and reload: a real exporter, real certificates, real handshakes."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from tachograph.node.config_file import ConfigError
from tachograph.node.web.web_access import MOST_CHECKS, is_local
from tachograph.node.web.web_config import WebConfig, read_web_config
from tachograph_lab.processes import Children, free_port
from tests.node.web.conftest import Certificates

ROOT = Path(__file__).parents[3]
LIMIT = 60.0
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def hashed() -> str:
    return bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4, b"2a")).decode().replace("$2a$", "$2y$")


class Site:
    """An exporter with a web configuration, and what it says to a client."""

    def __init__(self, exporter_at: Callable[..., Any], certificates: Certificates, folder: Path, text: str) -> None:
        for file in certificates.folder.iterdir():
            shutil.copy(file, folder)
        self.folder, self.file, self.certificates = folder, folder / "web.yml", certificates
        self.file.write_text(text)
        self.exporter = exporter_at("--no-gpu", f"--web.config.file={self.file}")
        self.place = self.exporter.url.removeprefix("http://")
        host, _, port = self.place.rpartition(":")
        self.address = (host, int(port))

    def get(self, path: str = "/metrics", context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str]:
        """Return status and text of an answer; raise where there is none."""
        request = urllib.request.Request(
            f"{'https' if context else 'http'}://{self.place}{path}",
            headers={name.replace("_", "-"): text for name, text in headers.items()},
        )
        try:
            with urllib.request.urlopen(request, timeout=LIMIT, context=context) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def refused(self, context: ssl.SSLContext | None = None, **headers: str) -> str:
        """Return why there is no answer."""
        with pytest.raises(OSError) as found:  # noqa: PT011 - what it says is for the caller to look at
            self.get(context=context, **headers)
        return str(found.value)

    def logged(self, words: str) -> int:
        return self.exporter.log.read_text().count(words)

    def eventually_logged(self, words: str) -> None:
        self.exporter.eventually(lambda: self.logged(words))


@pytest.fixture
def site(
    exporter_at: Callable[..., Any], certificates: Certificates, tmp_path: Path
) -> Iterator[Callable[[str], Site]]:
    """Start exporters, which end with the test and not with the module: each ticks twenty times a second."""
    started: list[Site] = []

    def start(text: str) -> Site:
        started.append(Site(exporter_at, certificates, tmp_path, text))
        return started[-1]

    yield start
    for one in started:
        one.exporter.end()


TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key"
BASIC = "basic_auth_users: {prometheus: %s}\n"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_tls(site: Any, certificates: Certificates) -> None:
    """Who trusts the authority is served; a wrong certificate, and plain HTTP, get no page and one line in the log."""
    served = site(TLS + "}\n")
    assert served.get(context=certificates.context())[0] == 200
    for _ in range(3):
        assert "certificate verify failed" in served.refused(certificates.context(authority="stranger-ca"))
        served.refused()
    served.eventually_logged("TLS handshake failed: http request")
    served.eventually_logged("unknown ca")
    assert served.logged("TLS handshake failed") == 2
    assert served.logged("Traceback") == 0
    counted = 'connections_refused_total{kind="http",reason="tls"} 6\n'
    served.exporter.eventually(lambda: counted in served.get(context=certificates.context())[1])


def test_an_expired_certificate(site: Any, certificates: Certificates) -> None:
    """A scraper refuses an expired certificate of ours, and the log says so in one line."""
    served = site(TLS.replace("server.", "expired.") + "}\n")
    assert "expired" in served.refused(certificates.context())
    served.eventually_logged("certificate expired")
    assert served.logged("TLS handshake failed") == 1


def test_mutual_tls(site: Any, certificates: Certificates) -> None:
    """Only a certificate of our authority with the right name opens the port; each other one is one line in the log."""
    mutual = ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.pem"
    served = site(TLS + mutual + ", client_allowed_sans: [prometheus.example]}\n")
    assert served.get(context=certificates.context("scraper"))[0] == 200
    for client, words in (
        ("", "peer did not return a certificate"), ("intruder", "certificate verify failed"),
        ("old-scraper", "certificate verify failed"), ("other", "client_allowed_sans"),
    ):  # fmt: skip
        served.refused(certificates.context(client))
        served.eventually_logged(words)
    assert served.logged("Traceback") == 0
    # Who has shown a certificate reads what ranks said last, wherever it comes from.
    speaker = served.exporter.speaker()
    speaker.hello()
    speaker.bye(outcome="failed", category="crash", message="no such file /data/llama")
    mine = {"context": certificates.context("scraper"), "X_Forwarded_For": "10.0.0.1"}
    served.exporter.eventually(lambda: "/data/llama" in served.get("/", **mine)[1])


def test_a_handshake_that_does_not_come(site: Any, certificates: Certificates) -> None:
    """Clients that stop within the handshake do not block others, and are disconnected."""
    served = site(TLS + "}\n")
    with contextlib.ExitStack() as crowd:
        clients = [crowd.enter_context(socket.create_connection(served.address, LIMIT)) for _ in range(80)]
        for client in clients:
            client.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert served.get(context=certificates.context())[0] == 200
        for client in clients:
            client.settimeout(LIMIT)
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
    assert served.logged("Traceback") == 0


def test_passwords(site: Any, hashed: str) -> None:
    """No password, a wrong one and an unknown user are 401 on every page, counted and logged; the right one is not."""
    served = site(BASIC % hashed)
    right = basic("prometheus", PASSWORD)
    for path in ("/metrics", "/", "/-/healthy", "/-/ready", "/nothing"):
        assert served.get(path)[0] == 401
    for header in (basic("prometheus", "wrong"), basic("nobody", PASSWORD), basic("prometheus", "x" * 100), "Basic ???",
                   "Bearer abc", basic("", "")):  # fmt: skip
        assert served.get(Authorization=header)[0] == 401, header
    assert served.get(Authorization=right)[0] == 200
    assert served.get("/nothing", Authorization=right)[0] == 404
    counted = 'connections_refused_total{kind="http",reason="auth"} 11\n'
    served.exporter.eventually(lambda: counted in served.get(Authorization=right)[1])
    assert served.logged("HTTP request without a password") == 1
    assert served.logged("HTTP request without the right password") == 1
    assert PASSWORD not in served.exporter.log.read_text()


def test_a_storm_of_wrong_passwords(site: Any) -> None:
    """While many guess, who has the password is served at once, for it was right before; few guesses wait."""
    slow = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
    served = site(BASIC % slow)
    right = basic("prometheus", PASSWORD)
    assert served.get(Authorization=right)[0] == 200
    over, answers = threading.Event(), []

    def guess(number: int) -> None:
        while not over.is_set():
            answers.append(served.get(Authorization=basic("prometheus", f"guess {number}"))[0])

    guessers = [threading.Thread(target=guess, args=(number,)) for number in range(MOST_CHECKS)]
    for guesser in guessers:
        guesser.start()
    try:
        assert [served.get(Authorization=right)[0] for _ in range(20)] == [200] * 20
        served.exporter.eventually(lambda: 401 in answers)
    finally:
        over.set()
        for guesser in guessers:
            guesser.join()
    assert set(answers) == {401, 429}


def test_headers(site: Any) -> None:
    """The headers of the file are on every answer; the status page's own policy stays."""
    served = site(
        "http_server_config: {http2: false, headers: {X-Frame-Options: deny, Content-Security-Policy: none}}\n"
    )
    _, headers, _ = served.exporter.get("/metrics")
    assert headers["x-frame-options"] == "deny"
    assert headers["content-security-policy"] == "none"
    assert "default-src 'none'" in served.exporter.get("/")[1]["content-security-policy"]


def fingerprint(served: Site, context: ssl.SSLContext) -> bytes | None:
    plain = socket.create_connection(served.address, LIMIT)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        return secure.getpeercert(binary_form=True)


def test_a_new_certificate_and_password(site: Any, certificates: Certificates, hashed: str) -> None:
    """Changed files are in use without a restart; a broken one leaves the last good ones, and is one log line."""
    served = site(TLS + "}\n" + BASIC % hashed)
    trusted = certificates.context()
    first = fingerprint(served, trusted)
    renewed = Certificates.__new__(Certificates)
    renewed.folder = served.folder
    renewed.write("server", certificates.authority.issue_cert("127.0.0.1"))
    served.exporter.eventually(lambda: fingerprint(served, trusted) != first)
    right, new = basic("prometheus", PASSWORD), basic("prometheus", "new")
    assert served.get(context=trusted, Authorization=right)[0] == 200
    served.file.write_text(TLS + "}\n" + BASIC % bcrypt.hashpw(b"new", bcrypt.gensalt(4)).decode())
    served.exporter.eventually(lambda: served.get(context=trusted, Authorization=new)[0] == 200)
    assert served.get(context=trusted, Authorization=right)[0] == 401
    served.file.write_text(TLS + ", colour: red}\nbasic_auth_users: {prometheus: hunter2}\n")
    served.eventually_logged("web configuration not reloaded")
    assert served.get(context=trusted, Authorization=new)[0] == 200
    assert served.logged("web configuration not reloaded") == 1
    assert served.logged("hunter2") == 0


def test_an_empty_file_opens_no_door(site: Any, certificates: Certificates, hashed: str) -> None:
    """One that is being written is empty for a moment: TLS and passwords stay, and what is written then counts."""
    served = site(TLS + "}\n" + BASIC % hashed)
    trusted = certificates.context()
    served.file.write_text("")
    served.eventually_logged("web configuration is empty")
    assert served.get(context=trusted)[0] == 401
    served.file.write_text(TLS + "}\n" + BASIC % bcrypt.hashpw(b"new", bcrypt.gensalt(4)).decode())
    new = basic("prometheus", "new")
    served.exporter.eventually(lambda: served.get(context=trusted, Authorization=new)[0] == 200)


def faults(folder: Path, text: str) -> list[str]:
    (folder / "web.yml").write_text(text)
    with pytest.raises(ConfigError) as found:
        read_web_config(folder / "web.yml")
    return [fault.removeprefix(f"{folder}/web.yml") for fault in found.value.faults]


def test_every_fault_at_once(tmp_path: Path) -> None:
    """Each fault is a line with its place and what was expected; no line shows a password."""
    found = faults(
        tmp_path,
        "tls_server_config:\n  cert_file: none.pem\n  key_file: none.key\n  client_auth_type: RequestClientCert\n"
        "  min_version: TLS10\n  cipher_suites: [RC4]\n  certfile: x\n"
        "basic_auth_users:\n  me: hunter2\n  you: $2y$31$" + "a" * 53 + "\n"
        "http_server_config:\n  headers:\n    X-Frame-Options: maybe\n  http2: 2\nrate_limit: {burst: 1}\n",
    )
    places = [re.match(r":(\d+): ([\w.-]+): (.*)", fault) for fault in found]
    assert {(int(m[1]), m[2]) for m in places if m} == {
        (2, "cert_file"), (4, "tls_server_config.client_auth_type"), (5, "tls_server_config.min_version"),
        (6, "tls_server_config.cipher_suites"), (7, "tls_server_config.certfile"), (9, "basic_auth_users.me"),
        (10, "basic_auth_users.you"), (13, "http_server_config.headers.X-Frame-Options"),
        (14, "http_server_config.http2"), (15, "rate_limit"),
    }  # fmt: skip
    assert all(places)
    assert "hunter2" not in "".join(found)
    assert any("did you mean cert_file?" in fault for fault in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tls_server_config: {}\n", "expected cert_file and key_file"),
        ("tls_server_config: [a]\n", "expected settings under it"),
        ("- a\n", "expected settings under it"),
        ("tls_server_config: {cert_file: server.pem, key_file: scraper.key}\n", "key values mismatch"),
        ("tls_server_config: {cert_file: ca.pem, key_file: web.yml}\n", "cert_file: "),
        (TLS + ", client_ca_file: ca.pem}\n", "client_auth_type beside client_ca_file"),
        (TLS + ", client_auth_type: RequireAndVerifyClientCert}\n", "client_ca_file beside client_auth_type"),
        (TLS + ", client_allowed_sans: [a]}\n", "client_allowed_sans expects"),
        (TLS + ", min_version: TLS13, max_version: TLS12}\n", "min_version is above max_version"),
        (TLS + ", cert_file: b}\n", "given twice"),
        ("basic_auth_users: [a]\n", "expected user names"),
        ("a: b: c\n", "not YAML"),
        ("basic_auth_users: {a: [b]}\n", "one line of text"),
    ],
)
def test_faults_of_the_file(certificates: Certificates, tmp_path: Path, text: str, words: str) -> None:
    """Contradictory settings are rejected at the start, not discovered at the first scrape."""
    shutil.copytree(certificates.folder, tmp_path, dirs_exist_ok=True)
    assert any(words in fault for fault in faults(tmp_path, text))


def test_what_a_good_file_gives(certificates: Certificates, tmp_path: Path, hashed: str) -> None:
    """Paths are relative to the file; versions, suites and users are as it says; an empty file is plain HTTP."""
    shutil.copytree(certificates.folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "web.yml"
    file.write_text(
        TLS + ", min_version: TLS12, max_version: TLS12, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]}\n"
        + BASIC % hashed
    )  # fmt: skip
    config = read_web_config(file)
    assert config.context is not None
    assert config.context.maximum_version is ssl.TLSVersion.TLSv1_2
    assert "ECDHE-RSA-AES128-GCM-SHA256" in {each["name"] for each in config.context.get_ciphers()}
    assert "ECDHE-RSA-AES256-GCM-SHA384" not in {each["name"] for each in config.context.get_ciphers()}
    assert config.users == {"prometheus": hashed.encode()}
    file.write_text("# nothing\n")
    assert read_web_config(file) == WebConfig(files=(file,))


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        (("127.0.0.1", 1), True), (("127.9.9.9", 1), True), (("::1", 1, 0, 0), True), ("", False),
        (("::ffff:127.0.0.1", 1, 0, 0), True), (("10.0.0.1", 1), False), (("::ffff:10.0.0.1", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), False), (None, False), (("0.0.0.0", 1), False),
    ],
)  # fmt: skip
def test_who_is_on_this_machine(peer: object, local: bool) -> None:
    """Loopback is; every other address is not, however it is written."""
    assert is_local(peer) is local


def test_what_a_rank_said_last(exporter_at: Callable[..., Any]) -> None:
    """To its owner its message is shown without its secret; a stranger sees none of it, on loopback neither."""
    exporter = exporter_at("--no-gpu")
    speaker = exporter.speaker()
    speaker.hello()
    speaker.bye(outcome="failed", category="crash", message="refused: token=hunter2 in /home/me/train.py")
    exporter.eventually(lambda: "/home/me/train.py" in exporter.ask("/")[1].decode())
    for path in ("/", "/api/node"):
        page = exporter.ask(path)[1].decode()
        assert "token=[redacted]" in page
        assert "hunter2" not in page
        public = exporter.get(path)[2].decode()
        assert "shown to the run&#x27;s owner" in public or "shown to the run's owner" in public
        assert "/home/me" not in public
        assert "crash" in public or "failed" in public


def test_ready_looks_at_the_socket(exporter_at: Callable[..., Any]) -> None:
    """Ready says 503 once the socket's path leads nowhere, or to somebody else's file."""
    exporter = exporter_at("--no-gpu")

    def ready() -> tuple[int, str]:
        try:
            return exporter.get("/-/ready")[0], ""
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def leads_nowhere() -> bool:
        exporter.socket.unlink(missing_ok=True)  # the exporter opens it again at its next tick
        return ready()[0] == 503

    assert ready() == (200, "")
    exporter.eventually(leads_nowhere)
    mine = exporter.folder / "mine"
    mine.write_text("mine")
    mine.replace(exporter.socket)
    status, words = ready()
    assert status == 503
    assert str(exporter.socket) in words
    exporter.stop()
    assert exporter.socket.read_text() == "mine"


def test_reload(exporter_at: Callable[..., Any], tmp_path: Path, hashed: str) -> None:
    """SIGHUP changes what can be changed, says what needs a restart, keeps all of it where the file is faulty."""
    file, web = tmp_path / "tachograph.yaml", tmp_path / "web.yml"
    file.write_text("log: {level: info}\n")
    web.write_text(BASIC % hashed)
    exporter = exporter_at("--no-gpu", f"--config={file}")
    speaker = exporter.speaker()
    speaker.hello()

    def reload(text: str, words: str, times: int = 1) -> str:
        """Return the log up to the last of so many mentions of some words."""
        before = len(exporter.log.read_text())
        file.write_text(text)
        exporter.process.send_signal(signal.SIGHUP)
        exporter.eventually(lambda: exporter.log.read_text().count(words, before) >= times)
        return exporter.log.read_text()[before:]

    said = reload(
        "gpu: {interval: 5s}\nrank: {series: all}\nlimits: {ranks: 7, hang_seconds: 60}\n", "configuration reloaded"
    )
    assert 'msg="these settings need a restart" settings="gpu.interval, limits.ranks"' in said
    assert 'changed="limits.hang_seconds, rank.series"' in said
    assert b'name="hang_seconds",set_by="site"} 60' in exporter.get("/metrics")[2]
    said = reload("log: {level: loud}\nrank: {serie: all}\n", "configuration not reloaded", 2)
    assert "log.level" in said
    assert "rank.serie" in said
    assert exporter.get("/metrics")[0] == 200
    reload(f"web: {{config: {{file: {web}}}}}\n", 'changed="limits.hang_seconds, rank.series, web.config.file"')
    with pytest.raises(urllib.error.HTTPError) as refused:
        exporter.get("/metrics")
    refused.value.close()
    assert refused.value.code == 401
    assert exporter.get("/metrics", Authorization=basic("prometheus", PASSWORD))[0] == 200
    speaker.state({"tokens_total": 5})
    assert exporter.process.poll() is None
    exporter.stop()
    assert exporter.process.returncode == 0
    assert not exporter.socket.exists()


AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=sys.argv[2] or str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-m", "tachograph", "exporter", *sys.argv[3:]])
"""


def activated(sock: socket.socket, folder: Path, *, pid: str = "") -> subprocess.Popen[str]:
    """Start an exporter as systemd does: with the socket as descriptor 3, and the environment variables for it."""
    flags = ["--no-gpu", "--web.systemd-socket", "--web.listen-address=127.0.0.1:1", f"--socket={folder}/rank.sock"]
    number = sock.fileno()
    command = [sys.executable, "-c", AS_SYSTEMD, str(number), pid, *flags]
    return subprocess.Popen(command, pass_fds=(number,), stderr=subprocess.PIPE, text=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tachograph-") as path:  # a unix socket's path has at most 107 bytes
        yield Path(path)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["TCP", "unix"])
def test_socket_activation(folder: Path, family: int) -> None:
    """A socket that systemd listens on is served, and a connection that waited on it from before is answered."""
    sock = socket.socket(family)
    sock.bind(("127.0.0.1", 0) if family == socket.AF_INET else str(folder / "http.sock"))
    sock.listen()
    client = socket.socket(family)
    client.settimeout(LIMIT)
    client.connect(sock.getsockname())
    client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
    process = activated(sock, folder)
    try:
        answer = b"".join(iter(lambda: client.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 200")
    finally:
        process.terminate()
        _, said = process.communicate(timeout=LIMIT)
        client.close()
        sock.close()
    assert process.returncode == 0, said


def test_no_socket_from_systemd(folder: Path) -> None:
    """Without one, or with one that is meant for another process or does not listen, one line says so."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        for pid, words in (("1", "start it through a .socket unit"), ("", "not a listening TCP or unix socket")):
            _, said = activated(sock, folder, pid=pid).communicate(timeout=LIMIT)
            assert len(said.splitlines()) == 1
            assert words in said


def test_a_faulty_file_at_the_start(tmp_path: Path) -> None:
    """Faults of the web configuration are listed with those of the flags, and nothing is started."""
    (tmp_path / "web.yml").write_text("tls: {}\n")
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "exporter", f"--web.config.file={tmp_path}/web.yml",
         "--web.max-requests=1"], capture_output=True, text=True, check=False, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 2
    assert [line.strip() for line in done.stderr.splitlines()[1:]] == [
        "--web.max-requests: '1': expected a whole number from 16 to 512",
        f"{tmp_path}/web.yml:1: tls: no such setting: expected one of tls_server_config, http_server_config, "
        "basic_auth_users",
    ]


def example(kind: str) -> Any:
    """Return the example in docs/web.md that has this key."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/web.md").read_text(encoding="utf-8"), re.DOTALL)
    return next(found for block in blocks if kind in (found := yaml.safe_load(block)))


def test_prometheus_scrapes_it(
    site: Any, hashed: str, programs: Mapping[str, Path], tmp_path: Path, wait_for_up: Any
) -> None:
    """A real Prometheus, configured as docs/web.md says, reads an exporter that is configured as docs/web.md says."""
    web = example("tls_server_config")
    assert set(web["basic_auth_users"]) == {"prometheus"}
    web["basic_auth_users"]["prometheus"] = hashed
    served = site(yaml.safe_dump(web))
    (job,) = example("scrape_configs")["scrape_configs"]
    (tmp_path / "password").write_text(PASSWORD)
    text = yaml.safe_dump({"scrape_configs": [job | {"scrape_interval": "1s", "scrape_timeout": "1s"}]})
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets/tachograph.yml").write_text(yaml.safe_dump([{"targets": [served.place]}]))
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/tachograph/", f"{tmp_path}/"))
    wait_for_up(programs["prometheus"], tmp_path)


@pytest.fixture
def wait_for_up(tmp_path: Path) -> Iterator[Callable[[Path, Path], None]]:
    """Return what starts a Prometheus and returns once its one target is up."""
    with Children(tmp_path / "logs") as children:

        def run(program: Path, folder: Path) -> None:
            port = free_port()
            flags = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                     f"--web.listen-address=127.0.0.1:{port}")  # fmt: skip
            child = children.start("prometheus", [str(program), *flags])

            def is_up() -> bool:
                try:
                    with urllib.request.urlopen(
                        f"http://127.0.0.1:{port}/api/v1/query?query=up", timeout=LIMIT
                    ) as answer:
                        return [each["value"][1] for each in json.load(answer)["data"]["result"]] == ["1"]
                except OSError:
                    return False

            child.wait_until(is_up, 2 * LIMIT)

        yield run
