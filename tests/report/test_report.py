"""The report of an incident, from a real Prometheus: its content, its limits, its errors."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.catalog import index as catalog
from tachograph.report.command import main, since_it_began
from tachograph.report.page import page
from tachograph.report.queries import SectionQueries
from tachograph.report.window import Window
from tachograph.servers.prometheus_api import Prometheus, TimeSeries
from tachograph.text.moments import iso
from tests.http_servers import serving
from tests.schemas import conforms

ROOT = Path(__file__).resolve().parents[2]
RUN, HOSTILE, CULPRIT = "llama-70b", '</title><script>alert("x")</script>\\$run', "21"
VOID = {"meta", "br"}
pytestmark = pytest.mark.e2e


class Page(HTMLParser):
    """A parsed page: its tables, attributes and text; fails unless every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words = ""
        self._cell = False
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def report(incident: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    """The report of the whole incident, as the command writes it."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    since, until = iso(incident.start), iso(incident.end)
    assert main([RUN, "--since", since, "--until", until, "--out", str(out), "--prometheus", incident.url]) == 0
    html = out.read_text(encoding="utf-8")
    return html, Page(html)


def test_the_report_as_json(incident: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it is, its window, and each alert, pages first; an address needs no scheme."""
    out = tmp_path / "report.html"
    since, until = iso(incident.start), iso(incident.end)
    address = incident.url.removeprefix("http://")
    flags = ["--since", since, "--until", until, "--out", str(out), "--prometheus", address, "--json"]
    assert main([RUN, *flags]) == 0
    found = conforms("report", capsys.readouterr().out)
    assert (found["run"], found["file"], found["bytes"]) == (RUN, str(out), out.stat().st_size)
    assert [(each["alert"], each["severity"]) for each in found["alerts"][:2]] == [
        ("GpuLost", "critical"),
        ("RunHung", "critical"),
    ]
    assert found["alerts"][1]["named"] == "rank 21, node-2, GPU 5"
    assert found["alerts_not_listed"] == {"GpuIdleInRun": 4}
    assert main([RUN, *flags[:4], "--out", "-", "--json"]) == 2


def at(incident: Any, age: float) -> str:
    return iso(incident.start + age)


def test_a_young_run_has_no_empty_hours(incident: Any) -> None:
    """Where nobody says since when, the window begins a minute before the run did, if that is less than two hours."""
    prometheus = Prometheus(incident.url)
    for before, begins in ((3600, -60), (-300, 300)):
        window = Window.between(incident.start - before, incident.start + 1200)
        found = since_it_began(prometheus, RUN, window)
        assert (found.start, found.end) == (incident.start + begins, incident.start + 1200)


def test_alert_episodes(report: tuple[str, Page], incident: Any) -> None:
    """Each alert with what it named, when it fired to a second, for how long, and its text if that is plain."""
    _, seen = report
    rows = {row[0]: row for row in seen.rows if len(row) == 5}
    page_row = rows["RunHungpage"]
    assert page_row[1] == "rank 21, node-2, GPU 5"
    assert page_row[2].startswith(at(incident, 2430))
    assert "true since" in page_row[2]
    assert page_row[3] == "9 min 30 s"
    assert page_row[4] == "Run llama-70b is hanging."
    assert rows["GpuLostpage"][1] == "node-2, GPU 5"
    assert f"2 pages; the first was GpuLost at {at(incident, 2400)}, naming node-2, GPU 5." in seen.words
    assert re.search(r"the first was GpuLost at .+?, naming node-2, GPU 5\. .*What usually helps", seen.words)
    assert "elsewhere" not in seen.words
    assert sum(row[0] == "GpuIdleInRunticket" for row in seen.rows) == 8
    assert "4 more of GpuIdleInRun" in seen.words


def test_run_summary(report: tuple[str, Page]) -> None:
    """World size, attempts, steps and their parts, tokens, goodput, GPU-hours: numbers that follow from the samples."""
    facts = {row[0]: row[1] for row in report[1].rows if len(row) == 2}
    assert facts["World size"] == "32 ranks on 4 nodes"
    assert facts["Attempts"] == "2, 1 restart"
    assert facts["Steps"] == "0 to 6,000: 6,000 completed"
    assert facts["Time of a step"] == "generate 200 ms (40%), update 200 ms (40%), idle 100 ms (20%)"
    assert facts["Weights of the engines"] == "1,500 updates, one every 4 steps"
    assert facts["Longest time without a step"] == "9 min 45 s"
    assert facts["Last restorable checkpoint"] == "step 6,000, 0 s old at the end"
    lost, all_hours = float(facts["GPU-hours lost"]), float(facts["GPU-hours allocated"])
    # Ten minutes of hang, a tenth of the rest; three minutes are not known.
    assert lost == pytest.approx(32 * (600 + 0.1 * 2820) / 3600, rel=0.05)
    assert all_hours == pytest.approx(32 * 3420 / 3600, rel=0.05)
    assert 1e9 * float(facts["Tokens trained on"].removesuffix("G")) == pytest.approx(2820e6, rel=0.05)


def test_pictures(report: tuple[str, Page], incident: Any) -> None:
    """The culprit is the first of 24 ranks and the only one in data during the hang; events and gaps are drawn."""
    html, seen = report
    pictures = [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    titles = [title.text or "" for picture in pictures for title in picture.iter("title")]
    ranks = [title.partition(":")[0] for title in titles if re.match(r"rank \d+ on", title)]
    assert len(ranks) == 24
    assert ranks[0] == "rank 21 on node-2 GPU 5"
    assert "rank 6 on node-0 GPU 6" in ranks
    held = [title for title in titles if title.startswith("rank 21: data")]
    assert held
    assert at(incident, 2400) in held[0]
    assert not any(re.match(r"rank (?!21)\d+: data", title) for title in titles)
    assert any(title.startswith("rank 0: collective") for title in titles)
    for words in ("restart 1", "loss spike, 1 step by", "checkpoint of step 2,400", "nan at", "node-2 GPU 5 GPU lost"):
        assert any(title.startswith(words) for title in titles), words
    loss = next(each for each in pictures if (each.findtext("title") or "").startswith("Loss"))
    drawn = next(path for path in loss.iter("path") if "line" in path.get("class", "").split())
    assert drawn.get("d", "").count("M") >= 2
    assert "No data" not in seen.words
    assert "hang: 5." in seen.words


def test_page_stands_alone(report: tuple[str, Page]) -> None:
    """It loads nothing, runs nothing, refers to nothing but runbooks, has its headings in order, and is small."""
    html, seen = report
    assert len(html.encode()) < 400_000
    assert "default-src 'none'" in html
    tags = {tag for tag, _, _ in seen.attributes}
    assert not tags & {"script", "img", "iframe", "object", "embed", "image", "use"}
    for tag, name, value in seen.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href", "style"):
            assert tag == "a"
            assert value.startswith("https://github.com/tachograph/tachograph/blob/main/runbooks/")
    assert "@import" not in html
    assert set(re.findall(r"url\((.)", html)) == {"#"}
    used, defined = set(re.findall(r"url\(#([\w-]+)\)", html)), set(re.findall(r'<pattern id="([\w-]+)"', html))
    assert used <= defined
    ids = [value for _, name, value in seen.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert [int(level) for level in re.findall(r"<h(\d)", html)] == [1] + [2] * html.count("<h2")
    for tag, name, value in seen.attributes:
        if name == "aria-labelledby":
            assert value in ids, tag
    fills = set(re.findall(r'class="(fill-[\w-]+)"', html))
    assert all(f".{fill} " in html or f".{fill}," in html for fill in fills)


def test_hostile_names(incident: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A run named like markup, and like our own placeholders, is text everywhere, and is found."""
    since, until = iso(incident.start), iso(incident.end)
    assert main([HOSTILE, "--since", since, "--until", until, "--out", "-", "--prometheus", incident.url]) == 0
    html = capsys.readouterr().out
    seen = Page(html)
    assert "<script" not in html
    assert "<b>" not in html
    assert HOSTILE in seen.words
    assert "RankDead" in seen.words


def test_questions_are_shown_and_bounded(incident: Any) -> None:
    """Every query is listed on the page; its series exist, none are buckets; it returns 24 of 32 ranks at most."""
    counted: list[tuple[int, int]] = []

    class Counting(Prometheus):
        def range(self, *given: Any) -> Any:
            return self.count(super().range(*given))

        def instant(self, *given: Any) -> Any:
            return self.count(super().instant(*given))

        def count(self, found: Any) -> Any:
            counted.append((len(found), len({series.labels.get("rank") for series in found})))
            return found

    html, _ = page(Counting(incident.url), RUN, Window.between(incident.start, incident.end), incident.end)
    asked = Page("<p>" + "".join(re.findall(r"<pre>.*?</pre>", html, re.DOTALL)) + "</p>").words
    files = (ROOT / "prometheus/rules").glob("*.yml")
    rules = [
        rule
        for path in files
        for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]
        for rule in group["rules"]
    ]
    known = {rule["record"] for rule in rules if "record" in rule} | {row.name for row in catalog.METRICS}
    names = set(re.findall(r"\b(?:tachograph_\w+|(?:run|rank|node|cluster):[\w:]+)", asked))
    assert len(names) > 40
    assert names <= known
    assert len(counted) > 60
    assert max(series for series, _ in counted) <= 100
    assert max(ranks for _, ranks in counted) == 24


def test_no_line_is_drawn_over_a_gap(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """Of 155 s without samples, as when Prometheus stood still, 90 s are bridged: by itself it does so for 300."""
    asked = SectionQueries(Asked(), "r", Window(0.0, 600.0, 10))  # type: ignore[arg-type]  # all that a line needs
    asked.line("run:loss:median")
    expression = asked.asked[0].partition("  # every")[0]
    hung = {"series": 'run:overdue_seconds:min{run="r"}', "values": "_ _ 30x1"}  # at 30 and 45 s
    samples = [
        {
            "expr": f"sum by (run) ({expression})",
            "eval_time": f"{at}s",
            "exp_samples": [{"labels": '{run="r"}', "value": 2}] * seen,
        }
        for at, seen in ((60, 1), (140, 1), (170, 0), (240, 1))
    ]
    asked.line("run:loss:median", in_hangs=False)
    stepping = asked.asked[1].partition("  # every")[0]
    samples += [
        {
            "expr": f"sum by (run) ({stepping})",
            "eval_time": f"{at}s",
            "exp_samples": [{"labels": '{run="r"}', "value": 2}] * seen,
        }
        for at, seen in ((15, 1), (45, 0))
    ]
    series = [{"series": 'run:loss:median{run="r"}', "values": "2x4 _x10 2x9"}]  # the last at 60 s, the next at 225 s
    tests = {"tests": [{"interval": "15s", "input_series": [*series, hung], "promql_expr_test": samples}]}
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(tests))
    done = subprocess.run([programs["promtool"], "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


class Asked:
    """A Prometheus that has nothing."""

    def range(self, *_: object) -> list[TimeSeries]:
        return []


def test_a_refused_question_costs_one_picture(incident: Any) -> None:
    """The error of a refused query replaces its figure; the rest of the page is complete."""
    queries = SectionQueries(Prometheus(incident.url), RUN, Window.between(incident.start, incident.end))
    assert queries.range("run:loss:median{$run} +") == []
    assert "refused" in queries.refused[0]
    assert queries.line("run:loss:median")


def test_a_run_on_which_nothing_fired(incident: Any, tmp_path: Path) -> None:
    """A report of a window without alerts says that there were none."""
    out = tmp_path / "quiet.html"
    since, until = at(incident, 0), at(incident, 300)
    assert main([RUN, "--since", since, "--until", until, "--out", str(out), "--prometheus", incident.url]) == 0
    assert "No alert fired on this run in this window." in out.read_text(encoding="utf-8")


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(theme: str) -> None:
    """Text has a contrast of at least 4.5:1 on the page, on cards and in bars (WCAG 2.2, 1.4.3)."""
    css = (files("tachograph.report") / "report.html").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w+)", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    )
    colours = light | (dark if theme == "dark" else {})
    bars = ("data", "copy", "forward", "backward", "optimizer", "collective", "checkpoint", "eval", "other", "gone",
            "init", "frozen", "finished")  # fmt: skip
    pairs = [(ink, ground) for ink in ("ink", "soft", "link", "bad", "warn", "calm") for ground in ("page", "card")]
    for ink, ground in [*pairs, *(("inside", bar) for bar in bars)]:
        one, other = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
        assert (one + 0.05) / (other + 0.05) >= 4.5, (ink, ground)


@pytest.fixture(scope="module")
def old() -> Iterator[str]:
    """The URL of a server that claims to be a Prometheus of 2019."""
    version = json.dumps({"status": "success", "data": {"version": "2.14.0", "goVersion": "go1.13"}}).encode()
    with serving(lambda *_: (200, version)) as url:
        yield url


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the line on standard error of a command that fails with status 1."""
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("tachograph report: ")
    return said.err


def test_bad_input(incident: Any, bare: str, old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No Prometheus, an old one, one without our rules, an unknown run, a window without data: one line says which."""
    out = str(tmp_path / "report.html")
    window = ["--since", iso(incident.start), "--until", iso(incident.end), "--out", out, "--prometheus"]
    assert "no Prometheus at http://127.0.0.1:9" in refused(capsys, RUN, *window, "http://127.0.0.1:9")
    assert "2.14.0" in refused(capsys, RUN, *window, old)
    assert "none of our rules" in refused(capsys, RUN, *window, bare)
    assert "llama-70b" in refused(capsys, "llama-70", *window, incident.url)
    early = ["--since", iso(incident.start - 9000), "--until", iso(incident.start - 7200)]
    said = refused(capsys, RUN, *early, "--out", out, "--prometheus", incident.url)
    assert "has no data from" in said
    assert "last seen about" in said
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "yesterday"], "'yesterday' is not a time"),
        (["--since", "2h", "--until", "3h"], "--since 2h is not before --until 3h"),
        (["--since", "10s"], "too short"),
        (["--since", "2000d"], "too long"),
        (["--since", "2999-01-01"], "is not before"),
    ],
)
def test_windows_that_make_no_sense(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid window is status 2 with the reason, before any query is sent."""
    assert main([RUN, "--out", "x.html", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_files(incident: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the file cannot be written, no query is sent; an existing file is replaced atomically or kept."""
    window = ["--since", iso(incident.start), "--until", iso(incident.end)]
    nowhere = refused(
        capsys, RUN, *window, "--out", str(tmp_path / "no/report.html"), "--prometheus", "http://x.invalid"
    )
    assert "there is no directory" in nowhere
    assert "is not a file" in refused(capsys, RUN, *window, "--out", str(tmp_path), "--prometheus", "http://x.invalid")
    out = tmp_path / "report.html"
    out.write_text("precious")
    out.chmod(0o640)
    refused(capsys, RUN, *window, "--out", str(out), "--prometheus", "http://127.0.0.1:9")
    assert out.read_text() == "precious"
    link = tmp_path / "latest.html"
    link.symlink_to(out)
    assert main([RUN, *window, "--out", str(link), "--prometheus", incident.url]) == 0
    assert link.is_symlink()
    assert "<title>llama-70b" in out.read_text(encoding="utf-8")
    assert out.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.html", "report.html"]


def test_what_is_said_fits_a_terminal(incident: Any, tmp_path: Path, fits: Callable[..., None]) -> None:
    """The line on the report and its first page."""
    flags = ["--since", iso(incident.start), "--until", iso(incident.end), "--prometheus", incident.url]
    fits(lambda: main([RUN, *flags, "--out", str(tmp_path / "report.html")]), takes_long=True)
