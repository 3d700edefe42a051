"""The exporter's configuration: one table of settings, read from flags, the environment and a YAML file.

All faults are found before anything starts, and reported together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tachograph.catalog.metric import ALL, DASHBOARDS, SERIES_LEVELS
from tachograph.command_line import CommandParser
from tachograph.findings.limits import LIMITS, Limit
from tachograph.node.config_file import ConfigError, Entry, read_file
from tachograph.node.log import LEVELS
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.run_names import POLICIES
from tachograph.node.unix_socket import fits
from tachograph.node.web.readers import NO_READERS, SiteReaders, read_site_readers
from tachograph.node.web.web_config import read_web_config
from tachograph.servers.server_address import DEFAULT_PORT, listen_address, web_socket_path
from tachograph.text.duration import parse
from tachograph.text.humanize import did_you_mean
from tachograph.wire import SOCKET_ENVIRONMENT, socket_path

DEFAULT_RAS = "localhost:28028"
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
LIMITS_PREFIX = "limits."
_MISSING = "\0"  # a flag without its value; no shell can pass this text
_limits = Limits()


@dataclass(frozen=True)
class Config:
    """A valid configuration."""

    listen_address: tuple[str | None, int]
    socket: Path
    socket_mode: int
    gpu_enabled: bool
    gpu_interval: float
    gpu_series: str
    gpu_dcgm_names: bool
    gpu_job_mapping_dir: Path | None
    gpu_kmsg: Path | None
    nic_sysfs: Path | None
    rank_series: str
    run_owner: str
    state_file: Path | None
    log_level: str
    limits: Limits
    site_limits: Mapping[str, float] = field(default_factory=dict)
    """The site's limits of runs by name, as far as it has set any."""
    web_config: Path | None = None
    web_max_requests: int = 64
    web_systemd_socket: bool = False
    web_socket: Path | None = None
    web_readers: SiteReaders = NO_READERS
    blackbox_peers: str = ""
    blackbox_ras: tuple[str, int] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The value of every setting by its name, compared by a reload."""


@dataclass(frozen=True)
class Setting:
    """One setting: its flag and file key, how its text is parsed, what a valid text looks like, and its default."""

    name: str
    read: Callable[[str], Any]
    expected: str
    default: str
    help: str
    live: bool = False
    """Whether a reload applies it; other settings need a restart."""


def _address_or_none(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, port = listen_address(text)
    if host is None or not port:
        raise ValueError
    return host, port


def _peers(text: str) -> str:
    url = urlsplit(text)
    if "\0" in text or text.isspace() or ("://" in text and (url.scheme not in ("http", "https") or not url.hostname)):
        raise ValueError
    return text


def _path(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise ValueError
    return Path(text)


def _path_or_none(text: str) -> Path | None:
    return _path(text) if text else None


def _limit(limit: Limit) -> Callable[[str], float | None]:
    """Return what reads a limit of the site; an empty text sets none."""

    def read(text: str) -> float | None:
        if not text:
            return None
        value = float(text)
        if not limit.admits(value):
            raise ValueError
        return value

    return read


def _mode(text: str) -> int:
    mode = int(text, 8)
    if not 0 <= mode <= 0o777:
        raise ValueError
    return mode


def _truth(text: str) -> bool:
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ValueError from None


def _one_of(words: Container[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return read


def _duration(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        seconds = parse(text, bare=True)
        if not low <= seconds <= high:
            raise ValueError
        return seconds

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and low <= int(text) <= high):
            raise ValueError
        return int(text)

    return read


SETTINGS = (
    Setting(
        "web.listen-address", listen_address, "host:port, :port or [ipv6]:port, with a port from 0 to 65535",
        f":{DEFAULT_PORT}", "Address on which to serve /metrics; port 0 takes any free port.",
    ),
    Setting(
        "web.config.file", _path_or_none, "a path, or nothing", "",
        "File in the format of Prometheus' exporter-toolkit: TLS, client certificates, passwords. Empty: plain HTTP.",
        live=True,
    ),
    Setting(
        "web.max-requests", _whole(16, 512), "a whole number from 16 to 512", "64",
        "Maximum number of HTTP connections; beyond it, an idle one is closed.", live=True,
    ),
    Setting(
        "web.systemd-socket", _truth, "true or false", "false",
        "Serve on the sockets passed by systemd instead of web.listen-address.",
    ),
    Setting(
        "web.socket", _path_or_none, "a path, or nothing", "",
        "Unix socket on which to serve the same pages: each user of the node sees everything in their own runs there, "
        "root and --web.readers in every run. Empty: none. Default: the socket's path with the suffix .web.sock.",
    ),
    Setting(
        "web.readers", read_site_readers, "names or uids of users and, after a %, of groups: alice,1005,%oncall", "",
        "Users and groups who may read everything in every run through web.socket: logs, environments, failures.",
        live=True,
    ),
    Setting(
        "socket", _path, "a path", "",
        f"Unix socket to which ranks connect. Default: ${SOCKET_ENVIRONMENT}, or {socket_path({})}, or "
        "$XDG_RUNTIME_DIR/tachograph/rank.sock.",
    ),
    Setting(
        "socket-mode", _mode, "an octal mode such as 0666 (in YAML in quotes)", "0666",
        "Permissions of the socket: ranks usually run as other users than the exporter does.",
    ),
    Setting("gpu.enabled", _truth, "true or false", "true", "Read GPUs through NVML."),
    Setting(
        "gpu.interval", _duration(0.1, 60), "a duration from 100ms to 1m, such as 1s", "1s", "Time between readings."
    ),
    Setting(
        "gpu.series", _one_of(SERIES_LEVELS), "one of " + ", ".join(SERIES_LEVELS), DASHBOARDS,
        "How much of each GPU is shown. few: what alerts and their texts need, for very large runs. "
        "dashboards: what dashboards read, too. all: everything, such as single links, pipes, PCIe errors.",
    ),
    Setting("gpu.detail", _truth, "true or false", "false", "Deprecated: use --gpu.series=all."),
    Setting(
        "gpu.dcgm-names", _truth, "true or false", "false",
        "Also show the default metrics of dcgm-exporter under its names, for dashboards and alerts made for it.",
    ),
    Setting(
        "gpu.job-mapping-dir", _path_or_none, "a path, or nothing", "",
        "Directory in which a scheduler's prolog writes the jobs of each GPU, as for dcgm-exporter.",
    ),
    Setting(
        "gpu.kmsg", _path_or_none, "a path, or nothing", "/dev/kmsg",
        "Kernel log to read for Xid errors and other faults of the node, if this user may. Empty: do not read it.",
    ),
    Setting(
        "nic.sysfs", _path_or_none, "a path, or nothing", "/sys",
        "Where the node's sysfs is mounted, from which network ports are read. Empty: do not read them.",
    ),
    Setting(
        "rank.series", _one_of(SERIES_LEVELS), "one of " + ", ".join(SERIES_LEVELS), DASHBOARDS,
        "How much of each rank is shown. few: what pages need to name who is at fault, for very large runs. "
        "dashboards: what alerts, dashboards and commands read. all: everything, such as GPU seconds by phase.",
        live=True,
    ),
    Setting("rank.detail", _truth, "true or false", "false", "Deprecated: use --rank.series=all.", live=True),
    Setting(
        "run.owner", _one_of(POLICIES), "one of " + ", ".join(POLICIES), "auto",
        "Whether a run's name is shown with its owner, as in alice/llama-7b. auto: not for root, for this user, or for "
        "a Slurm job that is named by its id.",
    ),
    Setting(
        "state-file", _path_or_none, "a path, or nothing", "",
        "File that keeps sums over a run across restarts of the exporter. Empty: do not keep them. "
        "Default: the socket's path with the suffix .state.",
    ),
    Setting(
        "blackbox.peers", _peers, "a file, an http:// or https:// URL, or nothing", "",
        "The other exporters, whose boxes /blackbox/<run> fetches when a person asks for it: a file of targets as for "
        "file_sd_configs, or the URL of a Prometheus. Empty: only this node's boxes are analyzed.",
    ),
    Setting(
        "blackbox.ras", _address_or_none, "host:port, or nothing", DEFAULT_RAS,
        "Where NCCL's RAS service listens (NCCL_RAS_ADDR of the jobs), asked once by `tachograph blackbox capture`. "
        "Empty: it is never asked.",
    ),
    Setting("log.level", _one_of(LEVELS), "one of " + ", ".join(LEVELS), "info", "Lowest level to log.", live=True),
    Setting(
        "limits.ranks", _whole(1, 4096), "a whole number from 1 to 4096", str(_limits.ranks),
        "Maximum number of ranks of one user on this node.",
    ),
    Setting(
        "limits.series", _whole(500, 100000), "a whole number from 500 to 100000", str(_limits.series),
        "Maximum number of rank series on the page; sample_limit in prometheus.yml must be larger.",
    ),
    Setting(
        "limits.series-per-rank", _whole(32, 4096), "a whole number from 32 to 4096", str(_limits.series_per_rank),
        "Maximum number of training series of one rank.",
    ),
    Setting(
        "limits.label-values", _whole(1, 1024), "a whole number from 1 to 1024", str(_limits.label_values),
        "Maximum number of values that a label may have in a rank's metric.",
    ),
    *(
        Setting(
            f"{LIMITS_PREFIX}{limit.name}", _limit(limit), f"{limit.expected}, or nothing", "",
            f"For runs without a limit of their own (recorder.threshold): {limit.meaning}."
            + ("" if limit.default is None else f" Default: {limit.default:g}."),
            live=True,
        )
        for limit in LIMITS.values()
    ),
    Setting(
        "ranks.frozen-after", _duration(2, 600), "a duration from 2s to 10m, such as 10s",
        f"{_limits.frozen_after:g}s", "Silence on an open connection after which a rank counts as frozen.",
    ),
    Setting(
        "ranks.retention", _duration(1, 86400), "a duration from 1s to 24h, such as 15m",
        f"{_limits.retention / 60:g}m", "How long a dead or failed rank stays visible.",
    ),
    Setting(
        "ranks.retention-finished", _duration(1, 86400), "a duration from 1s to 24h, such as 2m",
        f"{_limits.retention_finished / 60:g}m", "How long a finished rank stays visible.",
    ),
)  # fmt: skip
_BY_NAME = {setting.name: setting for setting in SETTINGS}
LIVE = frozenset(setting.name for setting in SETTINGS if setting.live)
"""The settings that a reload applies."""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph exporter",
        description="Serve metrics of this node's GPUs and training ranks for Prometheus.",
        epilog="A --config file has the same names as keys, nested at the dots: gpu: {interval: 1s}. A flag takes "
        f"precedence over ${SOCKET_ENVIRONMENT}, which takes precedence over the file.",
        allow_abbrev=False,
        statuses={
            0: "ended by a signal",
            1: "an address or a socket is in use, which may be temporary",
            2: "it cannot start: each fault in the configuration is named",
        },
    )
    parser.add_argument("--config", nargs="?", const=_MISSING, metavar="FILE", help="YAML file of settings.")
    for setting in SETTINGS:
        text = setting.help + (f" Default: {setting.default}." if setting.default else "")
        bare = "true" if setting.read is _truth else _MISSING
        metavar = setting.name.rpartition(".")[2].rpartition("_")[2].upper()
        parser.add_argument(f"--{setting.name}", dest=setting.name, nargs="?", const=bare, metavar=metavar, help=text)
    parser.add_argument("--no-gpu", dest="gpu.enabled", action="store_const", const="false", help="Do not read GPUs.")
    return parser


def _nearest(flag: str) -> str:
    known = [f"--{name}" for name in (*_BY_NAME, "config", "no-gpu")]
    return did_you_mean(flag.partition("=")[0], known, alike=0.75) or "see tachograph exporter --help"


def _beside(socket: Path) -> dict[str, Path | None]:
    """Return where the other files of an exporter are by default; a socket's path can be too long."""
    web = Path(web_socket_path(str(socket)))
    return {"state-file": socket.with_suffix(".state"), "web.socket": web if fits(web) else None}


def read_config(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Config:
    """Return the configuration; raise ConfigError with every fault of flags and file."""
    env = os.environ if environment is None else environment
    flags, unknown = _parser().parse_known_args(arguments)
    faults = [f"{flag}: no such flag: {_nearest(flag)}" for flag in unknown]
    texts = {setting.name: Entry(setting.default, "default") for setting in SETTINGS}
    texts["socket"] = Entry(str(socket_path(env)), "default")
    if flags.config == _MISSING:
        faults.append("--config: no value: expected a YAML file")
    elif flags.config is not None:
        entries, file_faults = read_file(Path(flags.config), tuple(_BY_NAME))
        texts.update(entries)
        faults.extend(file_faults)
    if env.get(SOCKET_ENVIRONMENT):
        texts["socket"] = Entry(env[SOCKET_ENVIRONMENT], f"${SOCKET_ENVIRONMENT}")
    for name, text in vars(flags).items():
        if name in _BY_NAME and text is not None:
            texts[name] = Entry(text, f"--{name}")
    values: dict[str, Any] = {}
    for name, entry in texts.items():
        setting = _BY_NAME[name]
        try:
            values[name] = setting.read(entry.text)
        except ValueError:
            given = "no value" if entry.text == _MISSING else repr(entry.text)
            faults.append(f"{entry.where}: {given}: expected {setting.expected}")
    if values.get("web.config.file") is not None:
        try:
            read_web_config(values["web.config.file"])
        except ConfigError as error:
            faults.extend(error.faults)
    if faults:
        raise ConfigError(faults)
    for shown in ("gpu", "rank"):
        if values[f"{shown}.detail"] and texts[f"{shown}.series"].where == "default":
            values[f"{shown}.series"] = ALL
    beside = _beside(values["socket"])
    values.update((name, path) for name, path in beside.items() if texts[name].where == "default")
    return Config(
        listen_address=values["web.listen-address"],
        socket=values["socket"],
        socket_mode=values["socket-mode"],
        gpu_enabled=values["gpu.enabled"],
        gpu_interval=values["gpu.interval"],
        gpu_series=values["gpu.series"],
        gpu_dcgm_names=values["gpu.dcgm-names"],
        gpu_job_mapping_dir=values["gpu.job-mapping-dir"],
        gpu_kmsg=values["gpu.kmsg"],
        nic_sysfs=values["nic.sysfs"],
        rank_series=values["rank.series"],
        run_owner=values["run.owner"],
        state_file=values["state-file"],
        log_level=values["log.level"],
        limits=Limits(
            ranks=values["limits.ranks"],
            series=values["limits.series"],
            series_per_rank=values["limits.series-per-rank"],
            label_values=values["limits.label-values"],
            frozen_after=values["ranks.frozen-after"],
            retention=values["ranks.retention"],
            retention_finished=values["ranks.retention-finished"],
        ),
        site_limits={name: value for name in LIMITS if (value := values[f"{LIMITS_PREFIX}{name}"]) is not None},
        web_config=values["web.config.file"],
        web_max_requests=values["web.max-requests"],
        web_systemd_socket=values["web.systemd-socket"],
        web_socket=values["web.socket"],
        web_readers=values["web.readers"],
        blackbox_peers=values["blackbox.peers"],
        blackbox_ras=values["blackbox.ras"],
        settings=values,
    )
