"""`tachograph run`: its options, and a script that runs whether it can be recorded or not."""

from __future__ import annotations

import atexit
import contextlib
import logging  # noqa: F401 - its first import, while an interrupted script ends, would turn its status into 1
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tachograph.attach import program
from tachograph.attach.observer import Observer
from tachograph.attach.on_import import when_imported
from tachograph.attach.script_recording import ScriptRecording
from tachograph.attach.summary import SUMMARY_ENVIRONMENT, Summary
from tachograph.attach.torch_hooks import attach
from tachograph.client.core.notice import notice
from tachograph.client.recorder import Recorder, on_created
from tachograph.client.torch.flight_recorder import enable_timing
from tachograph.client.transport.shutdown import note_exit
from tachograph.findings.limits import LIMITS
from tachograph.text.humanize import did_you_mean

USAGE = """usage: tachograph run [options] SCRIPT [argument ...]
       tachograph run [options] -m MODULE [argument ...]
       torchrun [options] -m tachograph run [options] SCRIPT [argument ...]
       tachograph run --watch [options] SCRIPT [argument ...]

Run a PyTorch training script as Python would, and record it without an edit.

options:
  --name NAME           the run's name (default: TACHOGRAPH_RUN, or torchrun's
                        or Slurm's name; --run is the same, but torchrun reads
                        it as its --run-path)
  --tokens-per-step N   tokens of one step, over all ranks
  --samples-per-step N  samples of one step, over all ranks
  --flops-per-token N   the model's operations per token, forward and backward
  --flops-per-step N    the same for a step, over all ranks
  --precision NAME      number format of the matrix products: bf16, fp16, ...
  --hang-seconds N      report a hang once the run has made no step for N
                        seconds (default: TACHOGRAPH_HANG_SECONDS, or the limit
                        of the alert rules)
  --steps FILE          write the steps of rank 0 to a file, for tachograph
                        compare; with {rank} in its name, those of every rank
  --watch               start an exporter for this program alone, and show what
                        it measures
  --report FILE         with --watch: at the end, write a page with the loss and
                        what was measured
  --quiet               do not print a summary at the end

exit status: the script's own; 2 for wrong options
"""

REPORT = "--report"
OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--name": ("run", str),
    "--run": ("run", str),
    "--tokens-per-step": ("tokens_per_step", float),
    "--samples-per-step": ("samples_per_step", float),
    "--flops-per-token": ("flops_per_token", float),
    "--flops-per-step": ("flops_per_step", float),
    "--precision": ("precision", str),
    "--hang-seconds": ("hang_seconds", float),
    "--steps": ("steps", str),
    REPORT: ("report", str),
}
"""Options with a value: the argument of `Recorder`, the threshold or the file that it is, and how its text is read."""

FLAGS = {"--watch", "--quiet"}
BEFORE_LAUNCHER = "tachograph run --watch -m torch.distributed.run [options] -m tachograph run SCRIPT"
AMOUNTS = {"tokens_per_step", "flops_per_token", "flops_per_step"}


class UsageError(Exception):
    """The command line is invalid; the text says why."""


def main(
    arguments: Sequence[str],
    watch: Callable[[Sequence[str], bool, str], int] | None = None,
    for_script: Sequence[str] = (),
) -> int:
    """Run a script; returns only where there is none to run, and after one that ended normally.

    `watch` runs the arguments without `--watch`, quietly or not, beside an exporter, writes its report to a file if one
    is named, and returns their status.
    `for_script` are arguments of the script that its launcher gave before ours.
    """
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    try:
        given, flags, target, rest = _parse(list(arguments))
        rest[:0] = for_script
        if "--watch" in flags and watch is not None:
            if "LOCAL_RANK" in os.environ:
                raise UsageError(f"--watch starts one exporter for all ranks: {BEFORE_LAUNCHER}")
            if target[0] == "script":  # to find a module would import what it is in
                program.script(target[1])
            report = given.get("report", "")
            return watch(_unwatched(arguments, report), "--quiet" in flags, report)
        if "report" in given:
            raise UsageError(f"{REPORT} needs --watch, which measures what it shows")
        chosen = program.module(target[1]) if target[0] == "-m" else program.script(target[1])
    except UsageError as error:
        sys.stderr.write(f"tachograph run: {error}; see tachograph run --help\n")
        return 2
    except program.NotFoundError as error:
        sys.stderr.write(f"tachograph run: {error}\n")
        return error.status
    try:
        if not _launches(rest):
            _record(given, "--quiet" in flags, at_once=not chosen.mentions_tachograph)
    except Exception as error:  # noqa: BLE001 - the script runs, recorded or not
        notice("run", "nothing is recorded", error)
    try:
        chosen.run(rest)
    except SystemExit as error:  # also one that was not raised by sys.exit
        note_exit(error)
        raise
    note_exit(SystemExit(0))  # not one that the script has caught
    return 0


def _unwatched(arguments: Sequence[str], report: str) -> list[str]:
    """Return the arguments without those that are for the watch; ours come before the script's."""
    words = list(arguments)
    words.remove("--watch")
    if report:
        at = next(i for i, word in enumerate(words) if word in {REPORT, f"{REPORT}={report}"})
        del words[at : at + 1 + (words[at] == REPORT)]
    return words


def _launches(words: Sequence[str]) -> bool:
    """Return whether a program's arguments are to start ranks under `tachograph run`: they are what is recorded."""
    return any(tuple(words[i : i + 3]) == ("-m", "tachograph", "run") for i in range(len(words)))


def _parse(words: list[str]) -> tuple[dict[str, Any], set[str], tuple[str, str], list[str]]:
    """Return the recorder's arguments, flags, what to run, and its arguments, which are not looked at."""
    given: dict[str, Any] = {}
    flags: set[str] = set()
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if word in FLAGS:
            flags.add(word)
        elif option in OPTIONS or word == "-m":
            if not equals:
                if not words:
                    raise UsageError(f"{word} needs a value")
                value = words.pop(0)
            if word == "-m":
                return given, flags, ("-m", value), words
            try:
                argument, read = OPTIONS[option]
                given[argument] = read(value)
            except ValueError as error:
                raise UsageError(f"{option} must be a number, not {value!r}") from error
            if argument in LIMITS and (fault := LIMITS[argument].fault(given[argument])):
                raise UsageError(f"{option} {fault}")
        elif word.startswith("-") and word != "--":
            raise UsageError(_unknown(word, option))
        else:
            if word == "--" and words:
                word = words.pop(0)
            if os.path.basename(word).rstrip(".0123456789") == "python":  # noqa: PTH119 - a word, not a file
                raise UsageError(f"give the script alone, without {word}: it is run as Python would run it")
            return given, flags, ("script", word), words
    raise UsageError("no script was given")


def _unknown(word: str, option: str) -> str:
    """Return why a word is no option of ours: Python's own are not."""
    if word in ("-", "-c"):
        return "give a file, a folder or -m MODULE: only `tachograph auto` records -c and standard input"
    if not word.startswith("--"):
        return f"unknown option {word}; Python's own go before -m: python {word} -m tachograph run SCRIPT"
    hint = did_you_mean(option, (*OPTIONS, *FLAGS))
    return f"unknown option {word}" + f"; {hint}" * bool(hint)


def _leave(text: str) -> None:
    """Print the summary; beside `--watch`, which puts its figures before it, leave it in its file."""
    if path := os.environ.get(SUMMARY_ENVIRONMENT):
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs 3 ms and 0.7 MB to import
            file.write(text)
    else:
        sys.stderr.write(text)


def _record(given: dict[str, Any], quiet: bool, *, at_once: bool) -> None:
    """Have PyTorch observed once the script imports it, and the summary printed by rank 0.

    The record begins `at_once`, so that a crash before the first batch is a run, too; else with the first event.
    """
    if os.environ.get("TACHOGRAPH_DISABLED", "") not in ("", "0"):
        return
    enable_timing()
    hang_seconds = given.pop("hang_seconds", None)
    if (steps := given.pop("steps", None)) is not None:
        from tachograph.export.step_file import StepFile

        file = StepFile(steps)
        given |= {"trace": file, "sinks": [file]}

    def make() -> Recorder:
        recorder = Recorder(**given)
        atexit.unregister(finish)
        atexit.register(finish)  # after the recorder's own, so that it runs before
        if hang_seconds is not None:
            recorder.threshold("hang_seconds", hang_seconds)
        return recorder

    summary = Summary()
    recording = ScriptRecording(make, summary)
    observer = Observer(recording)
    on_created(recording.script_records)
    when_imported("torch", lambda torch: attach(torch, observer))
    process = os.getpid()

    def finish() -> None:
        if os.getpid() != process:
            return
        if observer.finish() == 0 and not quiet:
            with contextlib.suppress(OSError, ValueError):  # stderr may be closed by now
                _leave(summary.text(given=bool(AMOUNTS & given.keys())))

    atexit.register(finish)
    if at_once:
        recording.here()
