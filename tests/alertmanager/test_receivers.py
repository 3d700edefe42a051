"""Messages that PagerDuty, Slack and a mail server receive from the real Alertmanager with the offered receivers."""

from __future__ import annotations

import json
import re
import socketserver
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = {"run": "llama", "tier": "hero"}
PAGE = {"alertname": "RankDead", "rank": "5", "instance": "node-09", "gpu": "5", **RUN}
TICKET = {"alertname": "GradientNormSpike", "severity": "warning", **RUN}
ANNOTATIONS = {
    "description": "Rank 5 died. Look at node-09’s log.",
    "cost": "1,024 GPU-hours an hour. Last checkpoint: step 48,000, at 02:02 UTC.",
    "runbook_url": "http://book/RankDead.md",
    "dashboard_url": "http://board/d/run?var-run=llama&from=now-30m",
}


class MailServer(socketserver.ThreadingTCPServer):
    """Accepts mail on loopback, without a login."""

    daemon_threads = True

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        super().__init__(("127.0.0.1", 0), Dialogue)


class Dialogue(socketserver.StreamRequestHandler):
    """One SMTP session, RFC 5321."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            command = line[:4].upper()
            if command == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                content = b"".join(iter(self.rfile.readline, b".\r\n"))
                assert isinstance(self.server, MailServer)
                self.server.mails.append(message_from_bytes(content, policy=policy.default))  # type: ignore[arg-type]
            self.wfile.write(b"221 bye\r\n" if command == b"QUIT" else b"250 yes\r\n")


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


@pytest.fixture
def delivered(
    programs: Mapping[str, Path],
    alertmanager: Callable[..., Any],
    receiver: Any,
    mail_server: MailServer,
    tmp_path: Path,
) -> Callable[..., tuple[dict[str, Any], dict[str, Any], EmailMessage]]:
    """Return the function that raises alerts and returns the event for PagerDuty, the Slack message and the mail."""

    def deliver(alerts: Sequence[Mapping[str, str]], annotations: Mapping[str, str]) -> Any:
        for name, secret in {"pagerduty-routing-key": "k", "slack-webhook-url": f"{receiver.url}/slack"}.items():
            (tmp_path / name).write_text(secret, encoding="utf-8")
        shipped = (ROOT / "alertmanager/alertmanager.yml").read_text(encoding="utf-8").partition("\nreceivers:")[0]
        offered = (
            (ROOT / "alertmanager/examples/receivers.yml").read_text(encoding="utf-8").partition("\nreceivers:")[2]
        )
        offered = offered.replace("/etc/alertmanager/secrets", str(tmp_path))
        offered = offered.replace("smtp.example.com:587", f"127.0.0.1:{mail_server.server_address[1]}")
        head = f"global: {{pagerduty_url: {receiver.url}/pagerduty, smtp_require_tls: false, smtp_hello: here}}\n"
        with alertmanager(
            programs["alertmanager"], tmp_path / "am", f"{head}{shipped}\nreceivers:{offered}"
        ) as running:
            running.raise_alerts(alerts, annotations, seconds_ago=60)
            deadline = time.monotonic() + 90
            while (len(receiver.bodies) < 2 or not mail_server.mails) and time.monotonic() < deadline:
                time.sleep(0.02)
        bodies = [json.loads(body) for body in receiver.bodies]
        (event,) = [body for body in bodies if "routing_key" in body]
        (message,) = [body for body in bodies if "attachments" in body]
        (mail,) = mail_server.mails
        return event, message["attachments"][0], mail

    return deliver


Delivered = Callable[..., tuple[dict[str, Any], dict[str, Any], EmailMessage]]


@pytest.mark.e2e
def test_every_receiver_gets_its_words(delivered: Delivered) -> None:
    """The shipped routes with the offered receivers: a hero run's page to PagerDuty and Slack, its ticket by mail."""
    event, message, mail = delivered([PAGE, TICKET], ANNOTATIONS)

    subject = "RankDead – run llama, rank 5 on node-09, GPU 5"
    assert event["payload"]["summary"] == subject
    assert event["payload"]["severity"] == "critical"
    assert (event["payload"]["group"], event["payload"]["component"]) == ("llama", "node-09")
    details = event["payload"]["custom_details"]
    assert details["firing"].startswith("Rank 5 died. Look at node-09’s log.\nSince ")
    assert details["cost"] == ANNOTATIONS["cost"]
    assert [link["text"] for link in event["links"]] == ["Runbook", "Dashboard", "Silence"]
    assert "&from=1" in event["client_url"]

    assert message["title"] == subject
    assert "*Cost:* 1,024 GPU-hours an hour" in message["text"]

    assert mail["Subject"] == "GradientNormSpike – run llama"
    parts = {kind: mail.get_body((kind,)).get_content() for kind in ("plain", "html")}  # type: ignore[union-attr]
    assert "Cost: 1,024 GPU-hours an hour. Last checkpoint: step 48,000, at 02:02 UTC." in parts["plain"]
    assert "<td" in parts["html"]
    assert "Look at node-09’s log." in parts["html"]


HOSTILE = {
    "calls everybody": "<!channel> <@U123> <!here>",
    "a link of its own": "<https://evil|Runbook>",
    "ends a link": "x|y><!channel>",
    "more lines": "a\r\nBcc: everybody@example.com\nRunbook: http://evil\u2028b",
    "marks": "*bold* _slanted_ ~struck~ `code` & all_reduce",
    "markup": '"><script>alert(1)</script><a href=javascript:x>',
    "turned round": "a\u202eb\u2066c\x1b[31m",
}


@pytest.mark.e2e
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_the_name_of_a_run_is_only_a_name(delivered: Delivered, name: str) -> None:
    """Anyone on a node may choose it: it mentions nobody, makes no link, markup or line break, reverses no text."""
    said = ANNOTATIONS | {
        "description": f"Rank 5 of run {name} died.",
        "dashboard_url": f"http://board/d/run?var-run={urllib.parse.quote_plus(name)}&from=now-30m",
    }
    event, message, mail = delivered([PAGE | {"run": name}, TICKET | {"run": name}], said)
    plain, html = (mail.get_body((kind,)).get_content() for kind in ("plain", "html"))  # type: ignore[union-attr]

    links = re.findall(r"<([^<>|]*)\|(\w+)>", message["text"])
    assert [text for _, text in links] == ["Runbook", "Dashboard", "Silence"]
    assert [link.partition("?")[0].rpartition("/")[0] for link, _ in links][:2] == ["http://book", "http://board/d"]
    assert urllib.parse.parse_qs(links[1][0].partition("?")[2])["var-run"] == [name]
    rest = re.sub(r"<[^<>]*\|\w+>|^\*(Cost|Tier):\*|^_Since .*_$", "", message["text"], flags=re.MULTILINE)
    for text in (rest, message["title"], message["fallback"]):
        assert not re.search(r"[<>*~`]|&(?!(amp|lt|gt);)|(?<!\w)_|_(?!\w)", text), text
    assert "all_reduce" not in name or "all_reduce" in rest

    lines = event["payload"]["custom_details"]["firing"].splitlines()
    assert lines == [line for line in lines if re.match(r"Rank 5 of run|Since |Cost: |Tier: |$|"
                     r"Runbook: http://book/|Dashboard: http://board/|Silence: http", line)]  # fmt: skip
    assert len(lines) == len([one for one in plain.strip().splitlines() if not one.startswith("[image")])
    one_liners = (event["payload"]["summary"], event["payload"]["group"], message["title"], mail["Subject"])
    for text in (*one_liners, lines[0], message["text"].splitlines()[0]):
        assert text.isprintable(), ascii(text)
    assert mail["Bcc"] is None
    assert "<script" not in html
    assert re.findall(r'href="([^"]*)"', html)[:1] == ["http://book/RankDead.md"]
    assert all(
        link.startswith(("http://book/", "http://board/", "http://")) for link in re.findall(r'href="([^"]*)"', html)
    )
