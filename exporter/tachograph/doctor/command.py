"""`tachograph doctor`: check this node, and Prometheus and Alertmanager where their addresses are given."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from tachograph.command_line import CommandParser, versioned_json
from tachograph.doctor.check_result import FAIL, OK, UNKNOWN, CheckResult, fail, unknown
from tachograph.servers import alertmanager_api, prometheus_api
from tachograph.servers.alertmanager_api import Alertmanager, AlertmanagerError
from tachograph.servers.prometheus_api import Prometheus, PrometheusError
from tachograph.text.wrapping import columns, fitted

WORDS = {OK: "right", FAIL: "wrong", UNKNOWN: "not checked"}


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph doctor",
        description="Check an installation from the rank's socket to the page: a line for each check, with what to do.",
        epilog="A line that begins with ? was not checked: docs/deploy/doctor.md.",
        statuses={0: "nothing is wrong", 1: "something is wrong", 2: "wrong arguments"},
    )
    parser.add_argument("--exporter", metavar="NODE|URL", help="the exporter's address, as for `tachograph top`")
    for name, environment in (
        ("prometheus", prometheus_api.ENVIRONMENT),
        ("alertmanager", alertmanager_api.ENVIRONMENT),
    ):
        parser.add_argument(
            f"--{name}",
            default=os.environ.get(environment),
            metavar="ADDRESS",
            help=f"HOST, HOST:PORT or a URL (default: ${environment}; without it: not checked)",
        )
    parser.add_argument(
        "--send-test-page", action="store_true", help="send one page, marked as a test, which ends by itself"
    )
    parser.add_argument("--json", action="store_true", help="print an object, with the key checks")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 1 if a check failed, 2 for wrong arguments."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
        if given.send_test_page and not given.alertmanager:
            parser.error("--send-test-page needs --alertmanager ADDRESS")
    except SystemExit as end:
        return int(end.code or 0)
    results = []
    for result in _results(given):
        results.append(result)
        if not given.json:
            print(_text(result), flush=True)
    found = Counter(result.verdict for result in results)
    if given.json:
        checks = [{**result._asdict(), "verdict": WORDS[result.verdict]} for result in results]
        print(versioned_json({"checks": checks}))
    else:
        print(", ".join(f"{found[verdict]} {word}" for verdict, word in WORDS.items()))
    return 1 if found[FAIL] else 0


def _text(result: CheckResult) -> str:
    """Return a result as text; where it does not fit in one line, what to do begins another."""
    if not result.then or len(str(result)) <= columns():
        return fitted(str(result), hang=5)
    return "\n".join((fitted(str(result._replace(then="")), hang=5), fitted(f"     {result.then}", hang=0)))


def _results(given: argparse.Namespace) -> Iterator[CheckResult]:
    """Yield the results of each side; one that does not answer is a result, too."""
    from tachograph.bundle.merged import MergeError  # these are in an extra
    from tachograph.doctor import alertmanager_checks, node_checks, prometheus_checks

    yield from node_checks.checks(given.exporter, elsewhere=bool(given.prometheus or given.alertmanager))
    try:
        if given.prometheus:
            yield from prometheus_checks.checks(Prometheus(given.prometheus))
        else:
            yield unknown("Prometheus", "give its address: --prometheus ADDRESS")
    except PrometheusError as error:
        yield fail(str(error))
    try:
        if given.alertmanager:
            alertmanager = Alertmanager(given.alertmanager)
            yield from alertmanager_checks.checks(alertmanager, send_test_page=given.send_test_page)
        else:
            yield unknown("Alertmanager", "give its address: --alertmanager ADDRESS")
    except (AlertmanagerError, MergeError) as error:
        yield fail(str(error))
