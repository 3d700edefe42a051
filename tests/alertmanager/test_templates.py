"""The text of notifications in both versions, as plain text, for Slack and as mail."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = "Run llama has been hanging for 34 s; rank 217 never entered all_reduce: <data> & more. Look at its loader."
ANNOTATIONS = {
    "description": WORDS,
    "cost": "1,024 GPU-hours an hour. Last checkpoint: step 48,000, at 02:02 UTC.",
    "runbook_url": "http://book/RunHung.md",
    "dashboard_url": "http://board/d/run?var-run=llama&var-rank=217&from=now-30m",
    "blackbox_url": "http://node-27:10024/blackbox/llama",
}
HALF_AN_HOUR_BEFORE, FIVE_MINUTES_AFTER = 1767231847123, 1767234670523
RANK = {"alertname": "RunHung", "run": "llama", "rank": "217", "instance": "node-27", "gpu": "1"}
OVER = "resolved"


def alert(labels: Mapping[str, str], status: str = "firing", **annotations: str) -> dict[str, Any]:
    return {
        "status": status, "labels": {"severity": "critical", **labels}, "annotations": ANNOTATIONS | annotations,
        "startsAt": "2026-01-01T02:14:07.123Z",
        "endsAt": "2026-01-01T02:26:10.523Z" if status == OVER else "0001-01-01T00:00:00Z",
    }  # fmt: skip


def notification(*alerts: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a template, grouped as shipped."""
    common = {
        name: value
        for name, value in alerts[0]["labels"].items()
        if all(one["labels"].get(name) == value for one in alerts)
    }
    return {
        "receiver": "page", "externalURL": "http://alerts.example", "commonLabels": common, "commonAnnotations": {},
        "status": OVER if all(one["status"] == OVER for one in alerts) else "firing",
        "groupLabels": {name: common[name] for name in ("run", "alertname") if name in common}, "alerts": list(alerts),
    }  # fmt: skip


def dead(count: int, status: str = "firing") -> list[dict[str, Any]]:
    labels = [
        {"alertname": "RankDead", "run": "llama", "rank": str(i), "instance": f"node-{i // 2}"} for i in range(count)
    ]
    return [alert(one, status) for one in labels]


class Render:
    """Renders a template with the amtool of one version."""

    def __init__(self, amtool: Path, folder: Path) -> None:
        self._amtool = amtool
        self._data = folder / "data.json"

    def __call__(self, template: str, data: Mapping[str, Any], kind: str = "text") -> str:
        self._data.write_text(json.dumps(data), encoding="utf-8")
        done = subprocess.run(
            [
                self._amtool, "template", "render", f"--template.type={kind}", f"--template.data={self._data}",
                f"--template.glob={ROOT / 'alertmanager/templates/*.tmpl'}",
                '--template.text={{ template "tachograph.' + template + '" . }}',
            ],
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


@pytest.fixture
def render(programs: Mapping[str, Path], tmp_path: Path) -> Render:
    return Render(programs["amtool"], tmp_path)


def test_the_subject_fits_a_phone_and_names_the_culprit(render: Render) -> None:
    """Run, rank, node, GPU if known; a group by its size and two nodes; a resolved alert with its duration."""
    gpu = {"alertname": "GpuLost", "instance": "node-6"}
    wanted = {
        "RunHung – run llama, rank 217 on node-27, GPU 1": [alert(RANK)],
        "RankDead – run llama, 12 ranks on node-0, node-1 and 4 more": dead(12),
        "RankDead – run llama, 4 ranks on node-0, node-1": dead(4),
        "GpuLost – 2 GPUs on node-6": [alert(gpu | {"gpu": "0"}), alert(gpu | {"gpu": "1"})],
        "ExporterDown – 3 nodes: node-0, node-1 and 1 more": [
            alert({"alertname": "ExporterDown", "instance": f"node-{i}"}) for i in range(3)
        ],
        "MfuDropped – run llama": [alert({"alertname": "MfuDropped", "run": "llama"})],
        "Resolved after 12m3s: RunHung – run llama, rank 217 on node-27, GPU 1": [alert(RANK, OVER)],
        "RankDead – run llama, rank 0 on node-0": [*dead(1), *dead(2, OVER)[1:]],
        "Odd": [alert({"alertname": "Odd"})],
    }
    for subject, alerts in wanted.items():
        assert render("subject", notification(*alerts)) == subject
        assert len(subject) <= 70


def test_the_body_says_what_since_when_the_cost_and_where_to_look(render: Render) -> None:
    """The lines have this order; a fact that is not known has no line."""
    full = render("body", notification(alert(RANK | {"tier": "hero", "run": "llama 7b+é"}))).splitlines()
    assert full[0] == WORDS
    assert full[1] == "Since 02:14:07 UTC, 1 January."
    assert full[3:] == [
        "Cost: 1,024 GPU-hours an hour. Last checkpoint: step 48,000, at 02:02 UTC.",
        "Tier: hero",
        "Runbook: http://book/RunHung.md",
        f"Dashboard: http://board/d/run?var-run=llama&var-rank=217&from={HALF_AN_HOUR_BEFORE}&to=now",
        "Black box: http://node-27:10024/blackbox/llama",
        "Silence: http://alerts.example/#/silences/new?filter=%7Balertname%3D%22RunHung%22%2Crun%3D%22llama%207b%2Bé%22%7D",
    ]
    bare = alert({"alertname": "GpuLost", "instance": "node-1", "gpu": "2"}) | {"annotations": {"summary": "Lost."}}
    text = render("body", notification(bare))
    assert text.startswith("Lost.\nSince ")
    assert not {"Cost", "Tier", "Runbook", "Dashboard", "Black box"} & {
        line.split(":")[0] for line in text.splitlines()
    }
    assert "filter=%7Balertname%3D%22GpuLost%22%2Cgpu%3D%222%22%2Cinstance%3D%22node-1%22%7D" in text


def test_a_long_range_of_the_dashboard_is_left_as_the_rule_chose_it(render: Render) -> None:
    """Only ranges up to an hour are absolute."""
    day = alert(RANK, dashboard_url="http://board/d/run?from=now-24h")
    assert "Dashboard: http://board/d/run?from=now-24h\n" in render("body", notification(day))


def test_a_group_is_capped(render: Render) -> None:
    """Three are shown in full, the others by their nodes, two of which are named."""
    for kind in ("body", "slack"):
        text = render(kind, notification(*dead(12)))
        assert text.count("Look at its loader.") == 3
        assert "And 9 more, on node-1, node-2 and 3 more." in text
        assert text.count("GPU-hours") == 1
        assert "more, on" not in render(kind, notification(*dead(3)))


def test_an_end_says_what_changed_and_how_long_it_lasted(render: Render) -> None:
    """Resolved alerts are listed beside firing ones; at the end the failure reason, and a dashboard of that time."""
    text = render("body", notification(*dead(1), *dead(2, OVER)[1:]))
    assert text.endswith("\n\nResolved:\nrun llama, rank 1 on node-0, after 12m3s")
    text = render("body", notification(*dead(3, OVER)))
    assert text.startswith("Resolved at 02:26:10 UTC, 1 January, after 12m3s. The last description:\n\n" + WORDS)
    assert f"from={HALF_AN_HOUR_BEFORE}&to={FIVE_MINUTES_AFTER}" in text
    assert "And 2 more, on node-0, node-1." in text
    assert "Silence" not in text
    slack = render("slack", notification(alert(RANK, OVER)))
    assert slack.startswith("Resolved after 12m3s: run llama, rank 217 on node-27, GPU 1\n")
    assert "Silence" not in slack


def test_slack_gets_its_own_escapes_and_links(render: Render) -> None:
    """`<data> & more` would be read as a link."""
    text = render("slack", notification(alert(RANK)))
    assert "&lt;data&gt; &amp; more" in text
    assert (
        "*Cost:* 1,024 GPU-hours an hour. Last checkpoint: step 48,000, at 02:02 UTC.\n<http://book/RunHung.md|Runbook>"
        in text
    )
    assert (
        text.count("|Dashboard>")
        == text.count("<http://node-27:10024/blackbox/llama|Black box>")
        == text.count("|Silence>")
        == 1
    )


@pytest.mark.parametrize("name", ["<!channel>", "<@U123>", "a & b", "*x* ~y~ `z` _w_"])
def test_names_of_runs_and_nodes_are_only_names(render: Render, name: str) -> None:
    """Nothing in them mentions a person, formats or ends an escape: in titles, in Slack's text, and in a mail."""
    labels = RANK | {"run": name, "instance": name}
    for alerts in ([alert(labels)], [alert(labels), alert(labels | {"rank": "1"})], [alert(labels, OVER)]):
        data = notification(*alerts)
        slack = render("slack", data)
        said = [line for line in slack.splitlines() if line.startswith(("Resolved", "And "))]
        for text in (render("subject", data), *said):
            assert not re.search(r"[<>&*~`]|(?<!\w)_|_(?!\w)", text), text
        assert len(Mail(render("mail", data, "html")).links) == (3 if data["status"] == OVER else 4)


@pytest.mark.parametrize(
    "address",
    [
        "http://evil.example", "https://evil.example/login", "HTTPS://a.b.evil.example:8/x?y", "www.evil.example",
        "evil.com/fix", "mailto:x@evil.example", "x@evil.example", "ftp://evil.example", "tel:911", "slack://channel",
        "(https://evil.com)", "ftp.evil.example", "evil.com?id=1", "evil.com#x", "evil.com:8080/x",
        "a.evil.xn--p1ai/fix",
    ],
)  # fmt: skip
def test_what_a_sender_says_is_no_link_and_no_mention(render: Render, address: str) -> None:
    """In a run's name or the last words, wherever they are shown; links are those of the rules."""
    labels = RANK | {"run": f"bob/{address}"}
    ours = "node-3.lab.example.org, train.py:42."
    words = f"Rank 217 of run bob/{address} ended with an error: see {address} or @here; {ours}"
    for alerts in ([alert(labels, description=words)], [alert(labels, OVER, description=words)]):
        data = notification(*alerts)
        for kind in ("subject", "body", "slack"):
            text = render(kind, data)
            for line in text.splitlines():
                rest = re.sub(r"<http[^|>]*\|[A-Z]\w+( box)?>|^(Runbook|Dashboard|Black box|Silence): \S+$", "", line)
                assert not re.search(r"(?i)://|www\.|ftp\.|@|(mailto|tel):|evil\.|\.example/", rest), line
            assert (ours in text) == (kind == "body" or (kind == "slack" and data["status"] == "firing"))
        mail = Mail(render("mail", data, "html"))
        assert not re.search(r"(?i)://|www\.|@|(mailto|tel):|evil\.", " ".join(mail.words))
        assert all(
            link.startswith(("http://book/", "http://board/", "http://node-27", "http://alerts")) for link in mail.links
        )


def test_a_domain_in_a_runs_name_is_none(render: Render) -> None:
    """Mail programs make links of bare domains, too; a version stays what it is."""
    data = notification(
        alert(RANK | {"run": "bob/evil.com llama-3.1-8b.v2"}, description="Run bob/evil.com has no GPU.")
    )
    assert "run bob/evil․com llama-3.1-8b.v2, rank 217" in render("subject", data)
    assert render("body", data).startswith("Run bob/evil․com has no GPU.\n")


class Mail(HTMLParser):
    """The text and links that a mail client shows; every tag must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open += [tag] if tag != "meta" else []
        self.links += [value or "" for name, value in attributes if name == "href"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += [data.strip()] if data.strip() else []


def test_the_mail_has_the_same_words_and_links(render: Render) -> None:
    """The text is escaped for HTML; every link has the target of that in the plain text."""
    for alerts in ([alert(RANK | {"run": 'llama "7b"'})], dead(12), [*dead(1), *dead(2, OVER)[1:]], dead(3, OVER)):
        data = notification(*alerts)
        mail = Mail(render("mail", data, "html"))
        assert not mail.open
        text = render("body", data)
        assert any(WORDS in words for words in mail.words)
        assert mail.words[0] == mail.words[1] == render("subject", data)
        for link in mail.links:
            assert link == "http://book/RunHung.md" or f": {link}" in text
        assert len(mail.links) == (3 if data["status"] == OVER else 4)
        assert ANNOTATIONS["cost"] in mail.words
        assert ("Cost then" in mail.words) == (data["status"] != "firing")
