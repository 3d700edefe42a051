"""The contract of the runbooks: one page per alert, one form, and nothing in it that does not exist.

What their commands may be is checked in test_commands.py, what their PromQL may use in tests/rules/test_contract.py.
"""

from __future__ import annotations

import re
from typing import Any

from tachograph.findings.kinds import severities
from tachograph.findings.limits import LIMITS
from tests.every import every
from tests.runbooks.page import INDEX, PAGES, ROOT, RUNBOOKS, blocks, prose, rows, sections, text_of

HEADINGS = [
    "First minute", "Meaning", "Cost of delay", "Decide", "Commands", "Safe and destructive", "False alarms", "Tune",
]  # fmt: skip
PLATFORMS = ["Kubernetes", "Slurm", "Bare metal"]
SEVERITIES = {"critical": "Page", "warning": "Ticket", "info": "Info", "none": "Heartbeat"}
WHO = {"you", "run", "hardware", "network", "storage", "facility", "cluster"}
LINES = 90
WORDS = 1_100
"""Of one runbook: more is not read at night."""

WITHOUT_TOP = {
    "no exporter answers there, or which one is not known": {
        "ExporterDown", "NodesUnreachable", "NvmlCollectorStale", "RunBlind", "StorageSlow",
    },
    "nothing is left of the run": {"RunDown", "RunEndedEarly", "RunNotRequeued"},
    "top does not show that: links, rows, ports and programs' own Xids": {
        "GpuEccCorrectedRising", "GpuFabricDegraded", "GpuFabricNotReady", "GpuNvlinkErrors", "GpuPcieDegraded",
        "GpuRowRemapFailed", "GpuRowRemapPending", "GpuXidRepeated", "NicErrorsRising", "NicLinkDown",
    },
    "nor gradients, rates and checksums": {
        "AmpSkippingSteps", "GradientNormNotFinite", "GradientNormSpike", "GradientNormVanished", "LearningRateStuck",
        "SilentDataCorruptionSuspected",
    },
    "nor hours, weeks, logs and disks": {
        "CheckpointDiskNearlyFull", "CheckpointFailed", "LossDiverging", "NodeRepeatedlyBlamed", "RecorderMisused",
    },
    "it is about the monitoring itself": {
        "ExporterScrapedTwice", "NodeClockSkewed", "RuleEvaluationFailing", "TachographWatchdog",
    },
}  # fmt: skip
"""The alerts at which `tachograph top` does not help within the first minute, by the reason."""

Rules = list[dict[str, Any]]


def alerts(rules: Rules) -> dict[str, dict[str, Any]]:
    """Return every alert with its severities, its subject (the rule file's stem) and its runbook's address."""
    found: dict[str, dict[str, Any]] = {}
    for rule in rules:
        if "alert" in rule:
            one = found.setdefault(rule["alert"], {"severities": [], "subject": rule["file"].removesuffix(".yml")})
            one["severities"] += [
                each for each in severities(rule["labels"]["severity"]) if each not in one["severities"]
            ]
            one["url"] = rule["annotations"].get("runbook_url", "")
    return found


def anchors(text: str) -> set[str]:
    """Return the addresses of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_alert_has_one_runbook_and_every_runbook_an_alert(rules: Rules) -> None:
    """None is missing, none outlives its alert, and the address in the page that is sent is its own."""
    known = alerts(rules)
    assert PAGES.keys() == known.keys()
    for name, alert in known.items():
        assert alert["url"].endswith(f"/blob/main/runbooks/{name}.md"), name


@every("name", PAGES)
def test_every_runbook_has_the_same_form(name: str, rules: Rules) -> None:
    """Name, severity, the fixed headings, none of them empty, short enough to be read in the night."""
    text, alert = PAGES[name], alerts(rules)[name]
    words = " or ".join(SEVERITIES[one] for one in sorted(alert["severities"], key=list(SEVERITIES).index))
    assert text.startswith(f"# {name}\n\n{words.capitalize()}"), f"{name}: line 3 begins with {words.capitalize()!r}"
    assert " Symptoms: " in text.splitlines()[2], f"{name}: line 3 names no symptom of tools/pages/runbooks.py"
    parts = sections(text)
    assert list(parts) == HEADINGS
    assert all(part.strip() for part in parts.values())
    assert len(text.splitlines()) <= LINES
    assert not [line for line in text.splitlines() if line != line.rstrip()], "spaces at a line's end"
    assert text.count("```") % 2 == 0
    for word in ("Safe:", "Destructive:"):
        assert word in parts["Safe and destructive"], f"what is {word[:-1].lower()} is not said"
    assert list(blocks(text, "promql")) or name == "TachographWatchdog"
    assert f"prometheus/src/{alert['subject']}.yml" in parts["Tune"], "Tune names the file with its numbers"


@every("name", PAGES)
def test_the_first_minute_comes_first_and_names_top(name: str) -> None:
    """The view of the run, or of the node, wherever one helps; nowhere else, or the reason is gone."""
    first, text = next(iter(sections(PAGES[name]).items()))
    assert first == "First minute"
    views = re.findall(r"`tachograph top (?:<run>|--exporter <node>)`", text)
    assert bool(views) != (name in set().union(*WITHOUT_TOP.values())), f"{name}: {views}"


def test_the_end_of_a_page_is_said_as_it_comes(rules: Rules) -> None:
    """RankDead outlasts the return of its rank by as long as its runbook says."""
    (kept,) = {rule["keep_firing_for"] for rule in rules if rule.get("alert") == "RankDead"}
    assert f"ends\n   {kept.removesuffix('m')} minutes after the rank is back" in PAGES["RankDead"]


@every("name", PAGES)
def test_a_runbook_is_short(name: str) -> None:
    """It is read at night."""
    assert len(text_of(name).split()) <= WORDS


@every("name", PAGES)
def test_the_decision_table_names_cause_and_who(name: str) -> None:
    """Each row: further symptom, cause, who acts, what they do; who is one of the roles of the index."""
    head, *lines = rows(sections(PAGES[name])["Decide"])
    assert head[-3:] == ["cause", "who", "do"], head
    assert len(lines) >= 2, "a table of one line decides nothing"
    for line in lines:
        assert len(line) == len(head), line
        assert all(line), f"an empty cell: {line}"
        assert set(line[-2].split(", ")) <= WHO, line


def test_the_roles_are_told() -> None:
    """Each role that a table names is explained once, in the index."""
    roles = {row[0] for row in rows(sections(INDEX.read_text(encoding="utf-8"))["Who is who"])[1:]}
    assert roles == WHO
    used = {who for text in PAGES.values() for row in rows(sections(text)["Decide"])[1:] for who in row[-2].split(", ")}
    assert used == WHO


@every("name", [*PAGES, "README"])
def test_every_link_leads_somewhere(name: str) -> None:
    """Files exist, and so do the headings that links point to."""
    text = text_of(name)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = RUNBOOKS / path if path else RUNBOOKS / f"{name}.md"
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), target


@every("name", [*PAGES, "README"])
def test_other_alerts_and_files_are_named_rightly(name: str, rules: Rules) -> None:
    """A name that looks like an alert's or a file's in this repository is one."""
    text = text_of(name)
    said = re.sub(r"`[^`\n]+`", "", prose(text))
    families = {re.match(r"[A-Z][a-z]+", alert)[0] for alert in PAGES}  # type: ignore[index]
    named = {word for word in re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", said) if re.match(r"[A-Z][a-z]+", word)}
    looks = {word for word in named if re.match(r"[A-Z][a-z]+", word)[0] in families}  # type: ignore[index]
    assert looks <= PAGES.keys(), looks - PAGES.keys()
    places = r"`((?:prometheus|exporter|tachograph|docs|tests|alertmanager|bench|grafana)/[\w./-]+)`"
    for path in re.findall(places, text):
        assert (ROOT / path).exists() or (ROOT / "exporter" / path).exists(), path
    for threshold in re.findall(r"recorder\.threshold\(\"(\w+)\"", text):
        assert threshold in LIMITS, threshold


def test_the_limits_of_one_run_are_told() -> None:
    """The index lists every limit that a run may set for itself, and none that it may not, with its range."""
    lines = rows(sections(INDEX.read_text(encoding="utf-8"))["Limits"])[1:]
    assert [line[0].strip("`") for line in lines] == list(LIMITS)
    for name, moves, default, between in lines:
        limit = LIMITS[name.strip("`")]
        assert between == f"{limit.least:.7g} to {limit.greatest:.7g}"
        assert default == ("its own rhythm" if limit.default is None else f"{limit.default:g}")
        for alert in re.findall(r"\]\((\w+)\.md\)", moves):
            told = sections(PAGES[alert])["Tune"]
            assert f'recorder.threshold("{name.strip("`")}"' in told, f"{alert} does not mention {name}"


@every("name", PAGES)
def test_every_runbook_leads_to_the_three_platforms(name: str) -> None:
    """Commands end with links to what is the same for all alerts, with parts for Kubernetes, Slurm and bare metal."""
    told = how_to()
    links = re.findall(r"\]\(README\.md#([\w-]+)\)", sections(PAGES[name])["Commands"])
    assert links, "no way to the node, no way to restart"
    assert set(links) <= told.keys(), links


def how_to() -> dict[str, str]:
    """Return the parts of the index's “How to”, by address."""
    parts = re.split(r"^### (.+)\n", sections(INDEX.read_text(encoding="utf-8"))["How to"], flags=re.MULTILINE)
    return {anchors(f"# {title}").pop(): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_each_how_to_covers_every_platform() -> None:
    """In one order, with a command for each; a part whose command is the same everywhere says so."""
    for title, text in how_to().items():
        if "the same everywhere" in text:
            assert list(blocks(text, "sh")) or "http" in text, title
            continue
        _, *parts = re.split(r"^(Kubernetes|Slurm|Bare metal)\b", text, flags=re.MULTILINE)
        assert parts[::2] == PLATFORMS, title
        assert all(list(blocks(part, "sh")) for part in parts[1::2]), title


def test_the_index_holds_every_alert(rules: Rules) -> None:
    """By severity each stands exactly where it belongs, by symptom at least once."""
    parts = sections(INDEX.read_text(encoding="utf-8"))
    known = alerts(rules)
    by_severity = {
        title: re.findall(r"\]\((\w+)\.md\)", text)
        for title, text in zip(
            *(iter(re.split(r"^### (.+)\n", parts["By severity"], flags=re.MULTILINE)[1:]),) * 2, strict=True
        )
    }
    told = {"critical": "Pages", "warning": "Tickets", "info": "Neither", "none": "Neither"}
    for title, names in by_severity.items():
        belong = {name for name, alert in known.items() if title in {told[one] for one in alert["severities"]}}
        assert set(names) == belong, f"{title}: {set(names) ^ belong}"
        assert len(names) == len(set(names)), title
    assert by_severity.keys() == set(told.values())
    assert set(re.findall(r"\]\((\w+)\.md\)", parts["By symptom"])) == known.keys()


@every("name", [*PAGES, "README"])
def test_runbooks_hold_no_place_of_ours(name: str) -> None:
    """No path of a home or of a workplace, no address of a network, nothing left to be done."""
    text = text_of(name)
    assert not re.search(r"/work/|/home/|/root/|/tmp/|\bTODO\b|\bTBD\b|\bFIXME\b|\b\d+\.\d+\.\d+\.\d+\b", text)
