"""`tachograph doctor`: check this node, and Prometheus and Alertmanager where their addresses are given."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from tachograph import alertmanager_api, prometheus_api
from tachograph.alertmanager_api import Alertmanager, AlertmanagerError
from tachograph.doctor.check_result import FAIL, OK, UNKNOWN, CheckResult, fail, unknown
from tachograph.printable import printable
from tachograph.prometheus_api import Prometheus, PrometheusError

WORDS = {OK: "right", FAIL: "wrong", UNKNOWN: "not checked"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tachograph doctor",
        description="Check an installation from the rank's socket to the page: a line for each check, with what to do.",
        epilog="Status 1 if something is wrong. A line that begins with ? was not checked: docs/deploy/doctor.md.",
    )
    parser.add_argument("--exporter", metavar="NODE|URL", help="the exporter's address, as for `tachograph top`")
    for name, environment in (
        ("prometheus", prometheus_api.ENVIRONMENT),
        ("alertmanager", alertmanager_api.ENVIRONMENT),
    ):
        parser.add_argument(
            f"--{name}",
            default=os.environ.get(environment),
            metavar="URL",
            help=f"default: ${environment}; without it: not checked",
        )
    parser.add_argument(
        "--send-test-page", action="store_true", help="send one page, marked as a test, which ends by itself"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 1 if a check failed, 2 for wrong arguments."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
        if given.send_test_page and not given.alertmanager:
            parser.error("--send-test-page needs --alertmanager URL")
    except SystemExit as end:
        return int(end.code or 0)
    found: Counter[str] = Counter()
    for result in _results(given):
        found[result.verdict] += 1
        print(printable(str(result)), flush=True)
    print(", ".join(f"{found[verdict]} {word}" for verdict, word in WORDS.items()))
    return 1 if found[FAIL] else 0


def _results(given: argparse.Namespace) -> Iterator[CheckResult]:
    """Yield the results of each side; one that does not answer is a result, too."""
    from tachograph.bundle.merged import MergeError  # these are in an extra
    from tachograph.doctor import alertmanager_checks, node_checks, prometheus_checks

    yield from node_checks.checks(given.exporter, elsewhere=bool(given.prometheus or given.alertmanager))
    try:
        if given.prometheus:
            yield from prometheus_checks.checks(Prometheus(given.prometheus))
        else:
            yield unknown("Prometheus", "give its address: --prometheus URL")
    except PrometheusError as error:
        yield fail(str(error))
    try:
        if given.alertmanager:
            alertmanager = Alertmanager(given.alertmanager)
            yield from alertmanager_checks.checks(alertmanager, send_test_page=given.send_test_page)
        else:
            yield unknown("Alertmanager", "give its address: --alertmanager URL")
    except (AlertmanagerError, MergeError) as error:
        yield fail(str(error))
