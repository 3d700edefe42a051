"""Shared by the tests of the exporter's port: certificates."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
import trustme

DAY = datetime.timedelta(days=1)


class Certificates:
    """An authority, and what it and a stranger's one issued, as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.stranger = trustme.CA(), trustme.CA()
        now = datetime.datetime.now(datetime.timezone.utc)
        past = {"not_before": now - 3 * DAY, "not_after": now - DAY}
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.stranger.cert_pem.write_to_path(folder / "stranger-ca.pem")
        self.write("server", self.authority.issue_cert("127.0.0.1"))
        self.write("expired", self.authority.issue_cert("127.0.0.1", **past))
        self.write("scraper", self.authority.issue_cert("prometheus.example"))
        self.write("other", self.authority.issue_cert("other.example"))
        self.write("old-scraper", self.authority.issue_cert("prometheus.example", **past))
        self.write("intruder", self.stranger.issue_cert("prometheus.example"))

    def write(self, name: str, issued: trustme.LeafCert) -> None:
        issued.cert_chain_pems[0].write_to_path(self.folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(self.folder / f"{name}.key")

    def context(self, client: str = "", authority: str = "ca") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / f"{authority}.pem"))
        if client:
            context.load_cert_chain(self.folder / f"{client}.pem", self.folder / f"{client}.key")
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
