"""TLS and passwords from end to end: what the chart renders, with real certificates, an exporter and Prometheus."""

from __future__ import annotations

import socket
import ssl
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from tachograph.servers.prometheus_api import Prometheus
from tachograph_lab.processes import Children, answers, free_port
from tests.deploy.chart_rendering import MATRIX, ON, PASSWORD, daemon_set, of_kind, rendered

NAME = "tachograph.gpu.svc"
SCRAPES = {
    "as the chart says": {},
    "without a certificate": {"cert": None, "keySecret": None},
    "by another name": {"serverName": "other.gpu.svc"},
    "with another authority": {"ca": {"secret": {"name": "stranger", "key": "ca.crt"}}},
    "in the clear": {"scheme": "http"},
    "without a password": {"basicAuth": None},
}
"""Changes of the rendered scrape by the job that has them: only the first may succeed."""


class Cluster:
    """The files of the Secrets by name, and the rendered objects."""

    def __init__(self, folder: Path, objects: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.objects = objects
        self.pod = daemon_set(objects)["template"]["spec"]
        authority, stranger = trustme.CA(), trustme.CA()
        self.secret("tachograph-tls", certificate(authority, NAME))
        self.secret("prometheus-tls", certificate(authority, "prometheus"))
        self.secret("stranger", certificate(stranger, NAME))
        self.secret("tachograph-password", {"username": b"prometheus", "password": PASSWORD.encode()})
        for name, made in of_kind(objects, "Secret").items():
            text = {
                key: value.replace("/etc/tachograph", f"{folder}/mounted") for key, value in made["stringData"].items()
            }
            self.secret(name, {key: value.encode() for key, value in text.items()})

    def secret(self, name: str, files: Mapping[str, bytes]) -> None:
        (self.folder / name).mkdir(parents=True)
        for key, content in files.items():
            (self.folder / name / key).write_bytes(content)

    def file(self, selector: Mapping[str, str]) -> str:
        """Return the path of what a secret's selector names."""
        return str(self.folder / selector["name"] / selector["key"])

    def command(self, port: int) -> list[str]:
        """Return the exporter's command line with the pod's volumes mounted below the folder."""
        (exporter,) = self.pod["containers"]
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        places = {"/run/tachograph": str(self.folder)}
        for mount in exporter["volumeMounts"][1:]:
            if "secret" not in volumes[mount["name"]]:
                continue
            place = self.folder / "mounted" / Path(mount["mountPath"]).name
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(self.folder / volumes[mount["name"]]["secret"]["secretName"])
            places[mount["mountPath"]] = str(place)
        arguments = exporter["args"]
        for inside, outside in places.items():
            arguments = [each.replace(inside, outside) for each in arguments]
        return [
            sys.executable,
            "-m",
            "tachograph",
            *(each.replace(":10024", f"127.0.0.1:{port}") for each in arguments),
        ]

    def scrape(self, job: str, changes: Mapping[str, Any], port: int) -> dict[str, Any]:
        """Return the scrape that the operator makes of the rendered PodMonitor with these changes."""
        (monitor,) = of_kind(self.objects, "PodMonitor").values()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        tls = {**endpoint["tlsConfig"], **changes}
        given = {**endpoint, **changes}
        found: dict[str, Any] = {
            "job_name": job,
            "scheme": given["scheme"],
            "scrape_interval": "500ms",
            "scrape_timeout": "500ms",
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        if given["scheme"] == "https":
            found["tls_config"] = {"server_name": tls["serverName"], "ca_file": self.file(tls["ca"]["secret"])}
            if tls["cert"]:
                found["tls_config"] |= {
                    "cert_file": self.file(tls["cert"]["secret"]),
                    "key_file": self.file(tls["keySecret"]),
                }
        if given["basicAuth"]:
            user, password = given["basicAuth"]["username"], given["basicAuth"]["password"]
            name = Path(self.file(user)).read_text()
            found["basic_auth"] = {"username": name, "password_file": self.file(password)}
        return found


def certificate(authority: trustme.CA, name: str) -> dict[str, bytes]:
    """Return a Secret of the type kubernetes.io/tls, as cert-manager makes it."""
    issued = authority.issue_cert(name)
    chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
    return {"tls.crt": chain, "tls.key": issued.private_key_pem.bytes(), "ca.crt": authority.cert_pem.bytes()}


@pytest.fixture(scope="module")
def scraped(program: Path, programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The rendered exporter with client certificates and passwords, and its scrapes by Prometheus: `up` by job."""
    folder = tmp_path_factory.mktemp("tls")
    cluster = Cluster(folder, rendered(program, MATRIX["closed"], namespace="gpu"))
    port, own = free_port(), free_port()
    configuration = {"scrape_configs": [cluster.scrape(job, changes, port) for job, changes in SCRAPES.items()]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    with Children(folder) as children:
        exporter = children.start("exporter", cluster.command(port))
        exporter.wait_until(lambda: "msg=serving" in exporter.log.read_text(encoding="utf-8"), 60)
        prometheus = children.start(
            "prometheus",
            [
                programs["prometheus"],
                f"--web.listen-address=127.0.0.1:{own}",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
            ],
        )
        prometheus.wait_until(partial(answers, f"http://127.0.0.1:{own}/-/ready"), 90)
        api = Prometheus(f"http://127.0.0.1:{own}")
        prometheus.wait_until(lambda: len(api.instant("count_over_time(up[1m]) >= 3")) == len(SCRAPES), 90)
        up = {each.labels["job"]: each.value for each in api.instant("max_over_time(up[1m])")}
        yield cluster, port, up, exporter


def test_prometheus_scrapes_as_the_chart_says_and_in_no_other_way(scraped: Any) -> None:
    """With the names, certificates and passwords of the rendered PodMonitor; each of them counts."""
    _, _, up, _ = scraped
    assert up == {job: float(job == "as the chart says") for job in SCRAPES}


def test_the_kubelet_sees_that_the_exporter_listens(scraped: Any) -> None:
    """It has neither certificate nor password: it opens a connection, and the exporter's log stays quiet about it."""
    cluster, port, _, exporter = scraped
    (container,) = cluster.pod["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["tcpSocket"] == {"port": "metrics"}
        before = exporter.log.read_text(encoding="utf-8")
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
        assert exporter.log.read_text(encoding="utf-8") == before


def test_with_tls_alone_the_kubelet_asks_as_before(program: Path, tmp_path: Path) -> None:
    """By HTTPS, of which it does not check the certificate."""
    values = {"tls": {"secretName": "tachograph-tls", "insecureSkipVerify": True}, "podMonitor": ON}
    cluster = Cluster(tmp_path, rendered(program, values, namespace="gpu"))
    port = free_port()
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    with Children(tmp_path) as children:
        exporter = children.start("exporter", cluster.command(port))
        exporter.wait_until(lambda: "msg=serving" in exporter.log.read_text(encoding="utf-8"), 60)
        for probe in ("readinessProbe", "livenessProbe"):
            asked = cluster.pod["containers"][0][probe]["httpGet"]
            url = f"{asked['scheme'].lower()}://127.0.0.1:{port}{asked['path']}"
            with urllib.request.urlopen(url, timeout=60, context=anyone) as answer:
                assert answer.status == 200
    (monitor,) = of_kind(cluster.objects, "PodMonitor").values()
    assert monitor["spec"]["podMetricsEndpoints"][0]["tlsConfig"] == {"serverName": NAME, "insecureSkipVerify": True}
