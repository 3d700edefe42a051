"""Where alerts and silences come from: an Alertmanager that is asked, one that pushes, or nowhere."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tachograph.node.config_file import ConfigError
from tachograph.node.web.web_config_file import WebConfigFile
from tachograph.servers.alertmanager_api import AlertmanagerError
from tachograph.supervise.alerts import ActiveAlerts
from tachograph.supervise.observer import Alerts, Silenced, never_silenced, no_alerts
from tachograph.supervise.pushed_alerts import PushedAlerts
from tachograph.supervise.silences import MaintenanceSilences
from tachograph.supervise.webhook import Admission, WebhookError, WebhookServer, address_of


class AlertSourceError(Exception):
    """An option is wrong; the text names it and says why."""


@dataclass(frozen=True)
class AlertSource:
    """A source of alerts and silences; within `server`, an Alertmanager may push them."""

    silenced: Silenced = never_silenced
    alerts: Alerts = no_alerts
    webhooks: Callable[[], Mapping[str, int]] = dict
    """How many messages were pushed, by what became of them."""
    server: AbstractContextManager[str] = field(default_factory=lambda: nullcontext(""))
    """Listens; its value is the address that Alertmanager is to send to, empty where it is not to. Raises OSError."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what says where alerts come from."""
    parser.add_argument(
        "--alertmanager", metavar="ADDRESS",
        help="HOST, HOST:PORT or a URL: its alerts count where no node can tell, and nothing is done within its "
        "silences (default: it is not asked)",
    )  # fmt: skip
    parser.add_argument(
        "--webhook", metavar="[HOST:]PORT",
        help="take alerts that an Alertmanager sends here because it cannot be asked (host: 127.0.0.1)",
    )  # fmt: skip
    parser.add_argument(
        "--webhook-secret", type=Path, metavar="FILE", help="the text that it sends as authorization: credentials_file"
    )
    parser.add_argument(
        "--webhook-tls", type=Path, metavar="FILE",
        help="certificates, in the format of --web.config.file; needed for a host that others reach",
    )  # fmt: skip


def alert_source(given: argparse.Namespace, runs: Collection[str], say: Callable[[str], None]) -> AlertSource:
    """Return the source that options name, of the alerts of a run by any of its names; raise AlertSourceError."""
    if given.webhook is None:
        if given.webhook_secret or given.webhook_tls:
            raise AlertSourceError("--webhook-secret and --webhook-tls are for --webhook")
        return _asked(given.alertmanager, say) if given.alertmanager else AlertSource()
    if given.alertmanager:
        raise AlertSourceError("--webhook is for an Alertmanager that cannot be asked: give it or --alertmanager")
    return _pushed(given, runs, say)


def _asked(address: str, say: Callable[[str], None]) -> AlertSource:
    try:
        return AlertSource(MaintenanceSilences(address, say).hold, ActiveAlerts(address, say).of)
    except AlertmanagerError as error:
        raise AlertSourceError(str(error)) from error


def _pushed(given: argparse.Namespace, runs: Collection[str], say: Callable[[str], None]) -> AlertSource:
    alerts = PushedAlerts(runs, say)
    try:
        host, port = address_of(given.webhook)
        tls = None if given.webhook_tls is None else WebConfigFile(given.webhook_tls)
        server = WebhookServer(host, port, Admission(given.webhook_secret, tls), alerts)
    except (ConfigError, ValueError, WebhookError) as error:
        raise AlertSourceError(f"--webhook {given.webhook}: {error}") from error
    return AlertSource(alerts=alerts.of, webhooks=alerts.counted, server=server)
