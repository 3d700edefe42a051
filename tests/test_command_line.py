"""Commands as a person mistypes them: one line, what to do, status 2; and `tachograph help`."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tachograph.__main__ import COMMANDS, main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["docter"], "tachograph: unknown command 'docter'; did you mean doctor?; see tachograph help"),
        (["reports"], "tachograph: unknown command 'reports'; did you mean report?; see tachograph help"),
        (["help", "tpo"], "tachograph: unknown command 'tpo'; did you mean top?; see tachograph help"),
        ([], "tachograph: no command given; expected one of run, auto, exporter, "),
        (["top", "--promtheus", "x"], "tachograph top: unknown option --promtheus; did you mean --prometheus?; see "),
        (["top", "--zzz"], "tachograph top: unknown option --zzz; see tachograph top --help"),
        (["top", "a", "b"], "tachograph top: 'b' is one argument too many; see tachograph top --help"),
        (["report", "r"], "tachograph report: the following arguments are required: --out; see tachograph report"),
        (["blackbox", "analyse"], "tachograph blackbox: COMMAND: 'analyse': did you mean analyze?; see tachograph"),
        (["blackbox", "analyze", "d", "--jsn"], "tachograph blackbox: unknown option --jsn; did you mean --json?; "),
        (["bundle", "--out", "d", "--receiver", "slak"], "tachograph bundle: --receiver: 'slak': did you mean slack?"),
        (["silence", "r", "--for", "20"], "tachograph silence: --for: '20' is not a duration: write 20m, 90s or "),
        (["doctor", "\x1b[31m"], "tachograph doctor: '\\x1b[31m' is one argument too many"),
        (["run", "--sampels-per-step", "3", "x.py"], "tachograph run: unknown option --sampels-per-step; did you mean"),
    ],
)
def test_a_mistake_is_one_line_that_helps(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error alone, with the command's name first and status 2."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(said)
    assert output.err.count("\n") == 1


def test_help_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone it lists the commands, with one it is that command's --help."""
    assert main(["help"]) == 0
    listed = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == listed
    assert all(f"\n  {name} " in listed for name in COMMANDS)
    assert max(map(len, listed.splitlines())) <= 80
    assert main(["help", "doctor"]) == 0
    assert capsys.readouterr().out.startswith("usage: tachograph doctor ")


@pytest.mark.parametrize("command", [*sorted(COMMANDS), "blackbox capture", "blackbox collect", "blackbox analyze"])
def test_every_help_fits_and_ends_with_the_exit_statuses(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal of 80 columns, its examples too. The statuses of `run` are the script's, which its help says."""
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    last = text.rpartition("exit status")[2]
    assert "\n  0  " in last or "the script's" in last
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"run", "exporter"}))
def test_every_text_is_wrapped(command: str) -> None:
    """By the one place that knows how wide it may be; `run` and `exporter` write logs. Tests of each try it."""
    package = Path(importlib.import_module(COMMANDS[command].main.partition(":")[0]).__file__ or "").parent
    sources = (path.read_text(encoding="utf-8") for path in package.glob("*.py"))
    assert any("from tachograph.text.wrapping import" in source for source in sources)


def test_what_a_program_without_a_log_prints_names_us() -> None:
    """A warning on standard error, where nothing else says whose it is."""
    program = "from tachograph.client.core.notice import notice; notice('a', 'no exporter', OSError('gone'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=90)
    assert done.stderr == "tachograph: no exporter: OSError('gone')\n"


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command is doing: status 130, as of a program that the signal ends."""

    def interrupted(_: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("tachograph.history.command.main", interrupted)
    assert main(["history"]) == 130
