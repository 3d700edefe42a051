"""Prometheus' side: the rules, what it scrapes, and where it sends alerts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tachograph.bundle import levels, rules
from tachograph.bundle.scale_out import CELLS_GROUP
from tachograph.doctor.check_result import CheckResult, fail, ok, unknown
from tachograph.servers.http_client import without_password
from tachograph.servers.prometheus_api import LoadedRule, Prometheus, ScrapeTarget
from tachograph.text.humanize import listed, plural

LONGEST_INTERVAL_SECONDS = 60.0
"""Between two scrapes: up to it the rules hold (docs/pages.md has the time from the fault to the page)."""


def checks(prometheus: Prometheus) -> Iterator[CheckResult]:
    """Yield the results of a Prometheus; raise PrometheusError where it does not answer."""
    version = prometheus.version()
    yield ok(f"{version} at {prometheus.url}")
    shipped = rules.all_rendered({})
    if not version.startswith("Prometheus "):
        yield from _store(prometheus, _groups_of(shipped))
        return
    known = _groups_of(shipped) | {CELLS_GROUP}
    ours = [rule for rule in prometheus.rules() if rule.group in known]
    level = _level(ours, levels.split(shipped, ()))
    if level:
        yield ok(f"it is {level.what}")
    groups = _groups_of(level.files if level else shipped)
    loaded = [rule for rule in ours if rule.group in groups]
    yield from _rules(loaded, groups)
    yield from _jobs(prometheus, loaded)
    yield from _scrapes(prometheus)
    if found := prometheus.alertmanagers():
        yield ok(f"it sends alerts to {listed([without_password(url) for url in found])}")
    elif not (level and level.silent):
        yield fail("it knows no Alertmanager", "name all its peers in `alerting: alertmanagers:` of prometheus.yml")


class _Level(NamedTuple):
    """One of several levels, its rule files, and whether it has no alerts."""

    what: str
    files: Mapping[str, str]
    silent: bool


def _level(loaded: Sequence[LoadedRule], split: levels.Levels) -> _Level | None:
    """Return the level that the loaded rules are those of, none if they are of a Prometheus alone."""
    if any(rule.group == CELLS_GROUP for rule in loaded):
        return _Level("the level above cells", split.above, silent=False)
    if loaded and {rule.name for rule in loaded} <= split.below:
        return _Level("the Prometheus of a cell: alerts come from the level above", split.cell, silent=True)
    return None


def _store(prometheus: Prometheus, shipped: set[str]) -> Iterator[CheckResult]:
    """Yield what a store can tell that others write to: whether samples and what the rules record arrive."""
    exporters = prometheus.instant("count(last_over_time(tachograph_exporter_info[5m]))")
    if exporters:
        yield ok(f"samples of {plural(round(exporters[0].value), 'exporter')} within 5 minutes")
    else:
        yield fail("no sample of an exporter within 5 minutes", "docs/deploy/other-prometheus.md")
    if prometheus.has_recorded():
        yield ok("what the rules record arrives here")
    else:
        yield fail("nothing that our rules record has arrived within an hour", "docs/deploy/other-prometheus.md")
    yield unknown(
        f"whether all {len(shipped)} groups of rules evaluate, what is scraped, and which Alertmanager gets the alerts",
        "ask what evaluates the rules: tachograph doctor --prometheus URL",
    )


def _groups_of(files: Mapping[str, str]) -> set[str]:
    return {name for text in files.values() for name in re.findall(r"^  - name: (\S+)$", text, re.MULTILINE)}


def _rules(loaded: Sequence[LoadedRule], shipped: set[str]) -> Iterator[CheckResult]:
    missing = sorted(shipped - {rule.group for rule in loaded})
    if missing:
        yield fail(
            f"{len(missing)} of our {len(shipped)} groups of rules are not loaded: {listed(missing)}",
            "tachograph bundle --out DIR, add DIR/rules/*.yml to rule_files, reload Prometheus",
        )
    failing = [rule for rule in loaded if rule.health == "err"]
    for first in failing[:1]:
        what = f"{plural(len(failing), 'rule')} cannot be evaluated, first {first.name} of {first.group}: {first.error}"
        yield fail(what, "runbooks/RuleEvaluationFailing.md")
    late = sorted({rule.group for rule in loaded if rule.health == "unknown"})
    if late:
        yield unknown(f"rules: {listed(late)} not evaluated yet", "run this again in five minutes")
    if not (missing or failing or late):
        yield ok(f"all {len(shipped)} groups of rules are loaded and evaluate")


def _jobs(prometheus: Prometheus, loaded: Sequence[LoadedRule]) -> Iterator[CheckResult]:
    """Yield whether there is a job for each name that the loaded rules read, else for the shipped names."""
    queries = " ".join(rule.query for rule in loaded)
    usual = rules.parameters()
    targets = prometheus.targets()
    named_jobs = set(re.findall(r'\bjob=~"([^"]+)"', queries)) or {usual["exporter_job"], usual["node_job"]}
    for pattern in sorted(one for one in named_jobs if not any(_is_part(other, one) for other in named_jobs)):
        up = prometheus.instant(f'sum by (job) (up{{job=~"{pattern}"}})')
        if not up and any(re.fullmatch(pattern, target.labels.get("job", "")) for target in targets):
            yield unknown(f"job {pattern}: not scraped yet", "run this again in a minute")
        elif not up:
            is_ours = usual["exporter_job"] in pattern.split("|")
            then = f"name a job of scrape_configs {usual['exporter_job'] if is_ours else 'so'}"
            if not is_ours:
                then += ", or render the rules for the name that it has: tachograph bundle --out DIR --node-job NAME"
            yield fail(f"rules read the job {pattern}, and nothing is scraped by that name", then)
        elif not any(series.value for series in up):
            yield fail(f"no target of the job {pattern} answers", f"see {prometheus.url}/targets")
        else:
            yield ok(f"job {pattern}: " + listed([f"{one.value:.0f} up as {one.labels['job']}" for one in up]))


def _is_part(pattern: str, of: str) -> bool:
    """Return whether the second of two names of jobs has all the alternatives of the first, and more."""
    return set(pattern.split("|")) < set(of.split("|"))


def _scrapes(prometheus: Prometheus) -> Iterator[CheckResult]:
    job = rules.parameters()["exporter_job"]
    targets = [target for target in prometheus.targets() if target.labels.get("job") == job]
    if not targets:
        return  # said by the check of the jobs
    if down := sorted((target for target in targets if target.health == "down"), key=_instance):
        first, whole = down[0], plural(len(targets), "exporter")
        yield fail(f"{len(down)} of {whole} not scraped, first {_instance(first)}: {first.error}", f"curl {first.url}")
    slowest = max(target.interval for target in targets)
    if slowest > LONGEST_INTERVAL_SECONDS:
        limit = f"{LONGEST_INTERVAL_SECONDS:.0f} s"
        yield fail(f"exporters are scraped every {slowest:g} s", f"set scrape_interval of {job} to {limit} or less")
    else:
        yield ok(f"exporters are scraped every {slowest:g} s")
    names = Counter(map(_instance, targets))
    same = "make `instance` the node's name in this job and in node_exporter's (docs/deploy/alertmanager.md)"
    if twice := sorted(name for name, count in names.items() if count > 1):
        yield fail(f"several exporters have one `instance`: {listed(twice)}", same)
    hosts = {one.labels.get("instance") for one in prometheus.instant("group by (instance) (node_exporter_build_info)")}
    if not hosts:
        yield unknown("`instance`: no node_exporter to compare with", "see the line on its job")
    elif apart := sorted(set(names) - hosts):
        yield fail(f"`instance` of {plural(len(apart), 'exporter')} is that of no node_exporter: {listed(apart)}", same)
    elif not twice:
        yield ok(f"`instance` names {plural(len(names), 'node')}, as node_exporter's does")


def _instance(target: ScrapeTarget) -> str:
    return target.labels.get("instance", "")
