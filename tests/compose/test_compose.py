"""The compose file as Compose reads it: every service hardened, every name and port correct."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import tachograph
from tachograph_lab import binaries

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = Path(sys.executable).parent / "docker-compose"
OVERLAY = "deploy/compose/gpu.yml"
SERVICES = ("exporter", "node_exporter", "prometheus", "alertmanager", "grafana", "demo")
Json = dict[str, Any]


def compose(*arguments: str) -> str:
    done = subprocess.run(
        [COMPOSE, *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert "level=warning" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def services() -> dict[str, Json]:
    """Every service, with anchors, defaults and variables resolved by Compose."""
    return dict(json.loads(compose("--profile", "demo", "config", "--format", "json"))["services"])


@pytest.mark.parametrize("files", [(), ("-f", "docker-compose.yml", "-f", OVERLAY)], ids=["plain", "with GPUs"])
def test_compose_accepts_the_file(files: tuple[str, ...]) -> None:
    """`up` runs `config -q` first."""
    assert compose(*files, "--profile", "demo", "config", "-q") == ""


def test_demo_is_opt_in(services: dict[str, Json]) -> None:
    """A plain `up` starts the five services of a node, without the simulated job."""
    plain = json.loads(compose("config", "--format", "json"))["services"]
    assert set(services) == set(SERVICES)
    assert set(services) - set(plain) == {"demo"}


def test_without_the_overlay_no_service_needs_a_gpu(services: dict[str, Json]) -> None:
    """The stack starts on a laptop; the overlay adds NVML and nothing else."""
    assert "'devices'" not in str(services)
    merged = json.loads(compose("-f", "docker-compose.yml", "-f", OVERLAY, "config", "--format", "json"))
    exporter = merged["services"]["exporter"]
    (device,) = exporter["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], exporter["environment"]["NVIDIA_DRIVER_CAPABILITIES"]) == ("nvidia", "utility")


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(services: dict[str, Json], name: str) -> None:
    """Each service is unprivileged, read-only, limited, has a health check, and is reachable from this machine only."""
    service = services[name]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"]), "runs as root"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert not {"cap_add", "privileged", "pid", "devices"} & service.keys()
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["healthcheck"]["test"][0] == "CMD", "a health check needs no shell"
    assert service["restart"]
    assert service["stop_grace_period"]
    assert service["logging"]["options"]["max-size"]
    assert {"cpus", "memory", "pids"} <= service["deploy"]["resources"]["limits"].keys()
    assert service.get("network_mode") != "host"
    assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_named_in_full_and_pinned(services: dict[str, Json], name: str) -> None:
    """Podman asks for the registry of a short name; a floating tag changes under a running cluster."""
    registry, _, rest = services[name]["image"].partition("/")
    assert "." in registry or registry == "localhost"
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", rest), rest


def test_own_image_carries_the_version(services: dict[str, Json]) -> None:
    """Otherwise an older image under the same tag would be used."""
    for name in ("exporter", "demo"):
        assert services[name]["image"] == f"localhost/tachograph:{tachograph.__version__}"
        assert (ROOT / services[name]["build"]["dockerfile"]).is_file()


def test_what_is_mounted_is_there_and_cannot_be_written(services: dict[str, Json]) -> None:
    """Configuration is mounted as read-only directories: a single mounted file misses a version saved by renaming."""
    for name, service in services.items():
        for mount in service.get("volumes", []):
            if mount["type"] == "bind":
                assert mount["read_only"], f"{name}: {mount['target']}"
                assert Path(mount["source"]).is_dir(), f"{name}: {mount['source']}"
    for path in ("prometheus/prometheus.yml", "alertmanager/alertmanager.yml", "grafana/dashboards/run.json"):
        assert (ROOT / path).is_file()


def test_services_start_after_what_they_need_is_healthy(services: dict[str, Json]) -> None:
    """Otherwise Prometheus would start with errors."""
    needs = {name: set(service.get("depends_on", {})) for name, service in services.items()}
    assert needs["prometheus"] == {"exporter", "alertmanager"}
    assert needs["grafana"] == {"prometheus"}
    for service in services.values():
        assert all(each["condition"] == "service_healthy" for each in service.get("depends_on", {}).values())


def test_targets_are_the_services_of_this_file(services: dict[str, Json]) -> None:
    """The directory mounted over prometheus/targets has the same files, existing services, and one name per node."""
    folder = ROOT / "deploy/compose/targets"
    shipped = {path.name for path in (ROOT / "prometheus/targets").glob("*.yml")}
    assert {path.name for path in folder.glob("*.yml")} == shipped
    instances = set()
    for name in shipped:
        for group in yaml.safe_load((folder / name).read_text(encoding="utf-8")):
            for target in group["targets"]:
                host, _, port = target.partition(":")
                service = services["prometheus" if host == "localhost" else host]
                listens = {str(each["target"]) for each in service.get("ports", [])} | set(service.get("expose", []))
                assert port in listens, f"{name}: nothing listens on {target}"
            if name in ("tachograph.yml", "node.yml"):
                instances.add(group["labels"]["instance"])
    assert len(instances) == 1


def test_links_in_alerts_lead_to_this_grafana(services: dict[str, Json]) -> None:
    """Rules have dashboard links from `grafana_url`; Compose serves Grafana on that port of this machine."""
    parameters = yaml.safe_load((ROOT / "prometheus/parameters.yml").read_text(encoding="utf-8"))
    (port,) = services["grafana"]["ports"]
    assert parameters["grafana_url"].endswith(f":{port['published']}")


@pytest.mark.parametrize(
    ("name", "program"),
    [("prometheus", "prometheus"), ("alertmanager", "alertmanager"), ("node_exporter", "node_exporter")],
)
def test_every_flag_exists(services: dict[str, Json], name: str, program: str) -> None:
    """A misspelt flag fails here, not in a container that restarts for ever."""
    try:  # the images are new ones
        command = [binaries.find("sid")[program], "--help"]
    except binaries.BinariesUnavailable as error:
        pytest.skip(str(error))
    help_text = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    known = set(re.findall(r"--(?:\[no-\])?([a-z][a-z0-9._-]*)", help_text.stdout + help_text.stderr))
    flags = [word.partition("=")[0].removeprefix("--") for word in services[name]["command"]]
    assert flags
    assert {flag.removeprefix("no-") for flag in flags} <= known


def test_the_demo_runs_a_script_of_the_checkout(services: dict[str, Json]) -> None:
    """The script is mounted, its options exist, and it imports nothing that the image lacks."""
    python, script = services["demo"]["entrypoint"]
    (mount,) = [each for each in services["demo"]["volumes"] if each["target"] == "/examples"]
    assert (python, mount["source"], mount["read_only"]) == ("python", str(ROOT / "examples"), True)
    path = ROOT / script.lstrip("/")
    help_text = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=True, timeout=60)
    flags = {word.partition("=")[0] for word in services["demo"]["command"]}
    assert flags <= set(re.findall(r"--[a-z-]+", help_text.stdout))
    imported = {name.partition(".")[0] for name in re.findall(r"(?m)^(?:import|from) ([\w.]+)", path.read_text())}
    assert imported - sys.stdlib_module_names == {"tachograph"}


def test_grafana_has_no_password_to_lose(services: dict[str, Json]) -> None:
    """Everything is provisioned, so the only role is that of a viewer."""
    environment = services["grafana"]["environment"]
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert not [key for key in environment if "PASSWORD" in key]


def test_dockerfile_is_small_and_unprivileged() -> None:
    """Two stages; the second has no compiler, no shell in its commands, and no root."""
    lines = (ROOT / "exporter/Dockerfile").read_text(encoding="utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("FROM")]
    assert len(starts) == 2
    last = lines[starts[-1] :]
    assert "USER 65532:65532" in last
    for word in ("ENTRYPOINT", "CMD", "  CMD", "RUN"):
        assert all(line.removeprefix(word).lstrip().startswith("[") for line in last if line.startswith(word + " "))
    assert any(line.startswith("HEALTHCHECK") for line in last)


def test_only_the_exporter_writes_beside_the_socket(services: dict[str, Json]) -> None:
    """Ranks connect through a read-only mount, so they can neither replace the socket nor fill the disk."""
    mounts = {
        name: mount.get("read_only", False)
        for name, service in services.items()
        for mount in service.get("volumes", [])
        if mount["target"] == "/run/tachograph"
    }
    assert mounts == {"exporter": False, "demo": True}


def test_build_context_is_a_list_of_what_goes_in() -> None:
    """The build context holds only what the package is built from: no checkout of 1 GB and no secret."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "exporter",
        "prometheus",
        "alertmanager",
        "grafana/dashboards",
        "runbooks",
    }
