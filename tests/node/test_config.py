"""The configuration: one table, read from flags, the environment and a file, with all faults told at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tachograph.node.config import SETTINGS, Config, ConfigError, read_config
from tachograph.node.ranks.limits import Limits
from tachograph.node.web.readers import SiteReaders
from tachograph.wire import SYSTEM_SOCKET


def faults(arguments: list[str], **environment: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as error:
        read_config(arguments, environment)
    return error.value.faults


def test_defaults() -> None:
    """Without a word it serves on every address at port 10024, reads GPUs every second, and keeps the limits."""
    assert read_config([], {}) == Config(
        listen_address=(None, 10024), socket=Path(SYSTEM_SOCKET), socket_mode=0o666, gpu_enabled=True, gpu_interval=1.0,
        gpu_series="dashboards", gpu_dcgm_names=False, gpu_job_mapping_dir=None, gpu_kmsg=Path("/dev/kmsg"),
        nic_sysfs=Path("/sys"), rank_series="dashboards", run_owner="auto",
        state_file=Path(SYSTEM_SOCKET).with_suffix(".state"), log_level="info",
        limits=Limits(), blackbox_peers="", blackbox_ras=("localhost", 28028),
        web_socket=Path(SYSTEM_SOCKET).with_suffix(".web.sock"),
    )  # fmt: skip


def test_wrong_listen_address() -> None:
    """What is no address is a fault that says what was expected."""
    (fault,) = faults(["--web.listen-address=::1:9100"])
    assert fault == (
        "--web.listen-address: '::1:9100': expected host:port, :port or [ipv6]:port, with a port from 0 to 65535"
    )


def test_a_file_sets_everything(tmp_path: Path) -> None:
    """Each setting has its place in the file, nested at the dots."""
    file = tmp_path / "tachograph.yaml"
    file.write_text(
        "web: {listen-address: '[::1]:1', socket: /w, readers: 'root,7,%8'}\n"
        "socket: /a/b\nsocket-mode: '0600'\ngpu:\n  enabled: no\n  interval: 500ms\n"
        "  series: few\n  dcgm-names: yes\n  job-mapping-dir: /jobs\n  kmsg: ''\n"
        "nic.sysfs: /host/sys\n"
        "rank: {series: few}\nrun.owner: always\nlog.level: debug\n"
        "limits: {ranks: 8, series: 900, series-per-rank: 64, label-values: 4,\n"
        "  hang_seconds: 600, data_stall_ratio: 0.5}\n"
        "ranks: {frozen-after: 30, retention: 1h, retention-finished: 1.5m}\nstate-file: /c\n"
        "blackbox: {peers: /d.yml, ras: 'ras:1'}\n"
    )
    assert read_config([f"--config={file}"], {}) == Config(
        listen_address=("::1", 1), socket=Path("/a/b"), socket_mode=0o600, gpu_enabled=False, gpu_interval=0.5,
        gpu_series="few", gpu_dcgm_names=True, gpu_job_mapping_dir=Path("/jobs"), gpu_kmsg=None,
        nic_sysfs=Path("/host/sys"), rank_series="few", run_owner="always", state_file=Path("/c"), log_level="debug",
        limits=Limits(
            ranks=8, series=900, series_per_rank=64, label_values=4, frozen_after=30.0, retention=3600.0,
            retention_finished=90.0,
        ), site_limits={"hang_seconds": 600.0, "data_stall_ratio": 0.5},
        blackbox_peers="/d.yml", blackbox_ras=("ras", 1), web_socket=Path("/w"),
        web_readers=SiteReaders(frozenset({0, 7}), frozenset({8})),
    )  # fmt: skip


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """The nearest word counts."""
    file = tmp_path / "t.yaml"
    file.write_text("socket: /file\ngpu: {enabled: true}\n")
    arguments = ["--config", str(file)]
    assert read_config(arguments, {}).socket == Path("/file")
    assert read_config(arguments, {"TACHOGRAPH_SOCKET": "/env"}).socket == Path("/env")
    assert read_config([*arguments, "--socket=/flag"], {"TACHOGRAPH_SOCKET": "/env"}).socket == Path("/flag")
    assert read_config([*arguments, "--no-gpu"], {}).gpu_enabled is False
    assert read_config([*arguments, "--gpu.enabled"], {}).gpu_enabled is True
    assert read_config([*arguments, "--gpu.enabled=false"], {}).gpu_enabled is False


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--limits.hang_seconds=5", "'5': expected a number of seconds from 10 to 86400, or nothing"),
        ("--limits.hang_seconds=10m", "'10m': expected a number of seconds from 10 to 86400, or nothing"),
        ("--limits.straggler_ratio=20", "'20': expected a share (0.2 for 20 %) from 0.06 to 0.95, or nothing"),
        ("--limits.data_stall_ratio=nan", "'nan': expected a share (0.2 for 20 %) from 0.05 to 0.95, or nothing"),
        ("--limits.hang_second=20", "no such flag: did you mean --limits.hang_seconds?"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_with_its_range(flag: str, says: str) -> None:
    """Out of range, in another unit, or unknown; in range it is the site's, also if it is the default."""
    assert faults([flag]) == (f"{flag.partition('=')[0] if 'expected' in says else flag}: {says}",)
    assert read_config(["--limits.hang_seconds=15", "--limits.data_stall_ratio="], {}).site_limits == {
        "hang_seconds": 15.0
    }


def test_detail_is_the_old_word_for_all_series() -> None:
    """`rank.detail` means `rank.series=all` for one release, unless the level is given, too; so for GPUs."""
    assert read_config(["--gpu.detail"], {}).gpu_series == "all"
    assert read_config(["--gpu.detail", "--gpu.series=few"], {}).gpu_series == "few"
    assert read_config(["--rank.detail"], {}).rank_series == "all"
    assert read_config(["--rank.detail=off"], {}).rank_series == "dashboards"
    assert read_config(["--rank.detail", "--rank.series=few"], {}).rank_series == "few"
    assert faults(["--rank.series=some"]) == ("--rank.series: 'some': expected one of few, dashboards, all",)


def test_a_path_that_may_be_left_out() -> None:
    """Nothing means none: no job mapping, no kernel log; a bare flag forgot its path."""
    config = read_config(["--gpu.job-mapping-dir=", "--gpu.kmsg", ""], {})
    assert (config.gpu_job_mapping_dir, config.gpu_kmsg) == (None, None)
    assert read_config(["--gpu.dcgm-names", "--socket=/s"], {}).gpu_dcgm_names is True
    web = read_config(["--web.config.file=", "--web.max-requests=50", "--web.systemd-socket"], {})
    assert (web.web_config, web.web_max_requests, web.web_systemd_socket) == (None, 50, True)
    assert faults(["--gpu.kmsg"]) == ("--gpu.kmsg: no value: expected a path, or nothing",)


def test_the_socket_of_the_pages_is_beside_the_other() -> None:
    """It can be left out, and is where its path would be too long for a socket."""
    assert read_config(["--socket=/a/b.sock"], {}).web_socket == Path("/a/b.web.sock")
    assert read_config(["--socket=/a/b.sock", "--web.socket="], {}).web_socket is None
    assert read_config([f"--socket=/{'a' * 100}.sock"], {}).web_socket is None


def test_every_fault_is_listed_with_its_line(tmp_path: Path) -> None:
    """Flags and file are judged together: nobody has to start five times to find five faults."""
    file = tmp_path / "t.yaml"
    file.write_text(
        "gpu:\n  interval: 5ms\n  intervall: 1s\nlimits:\n  ranks: many\n  ranks: 3\nlog:\n  level: [info]\n"
        "socket-mode: 0999\nnonsense: {}\nranks:\n  - 1\n"
    )
    found = faults([f"--config={file}", "--log.level=loud", "--socket", "--unknown", "stray"])
    assert sorted(fault.removeprefix(f"{file}:") for fault in found) == [
        "--log.level: 'loud': expected one of debug, info, warning, error",
        "--socket: no value: expected a path",
        "--unknown: no such flag: see tachograph exporter --help",
        "10: nonsense: no such setting: expected one of " + ", ".join(setting.name for setting in SETTINGS),
        "12: ranks: expected settings under it: frozen-after, retention, retention-finished",
        "2: gpu.interval: '5ms': expected a duration from 100ms to 1m, such as 1s",
        "3: gpu.intervall: no such setting: did you mean gpu.interval?",
        "5: limits.ranks: 'many': expected a whole number from 1 to 4096",
        "6: limits.ranks: given twice",
        "8: log.level: expected one value, not a list",
        "9: socket-mode: '0999': expected an octal mode such as 0666 (in YAML in quotes)",
        "stray: no such flag: see tachograph exporter --help",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gpu: {interval: 1s\n", r":2: not YAML: expected ',' or '}'"),
        ("- a\n- b\n", r":1: expected settings such as gpu: \{interval: 1s\}"),
        ("just words\n", r":1: expected settings"),
        ("a: &a {b: *a}\n", r"no such setting"),
        ("? [x]\n: 1\n", r":2: \?: no such setting"),
        ("\t: 1\n", r":1: not YAML"),
        ("!!python/object:os.system {}\n", r"expected settings"),
    ],
)
def test_a_file_that_is_no_settings(tmp_path: Path, text: str, fault: str) -> None:
    """Whatever the file holds, the fault is one line with its place, never a traceback."""
    file = tmp_path / "t.yaml"
    file.write_text(text)
    found = faults([f"--config={file}"])
    assert any(re.search(fault, line) for line in found), found


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are no text are faults; an empty file is none."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text("# nothing\n")
    for name, words in (("none", "No such file"), ("", "Is a directory"), ("bytes", "not UTF-8 at byte 0")):
        (fault,) = faults([f"--config={tmp_path / name}"])
        assert words in fault
    assert faults(["--config"]) == ("--config: no value: expected a YAML file",)
    assert read_config([f"--config={tmp_path / 'empty'}"], {}).limits == Limits()


def test_every_setting_tells_what_it_expects() -> None:
    """Each default is right by its own rule, and an impossible text is refused with the expectation."""
    for setting in SETTINGS:
        if setting.default:
            setting.read(setting.default)
        (fault,) = faults([f"--{setting.name}= "])
        assert fault.endswith(f"expected {setting.expected}")
