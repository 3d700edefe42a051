"""Logs of a training process, read back as a log collector would."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tachograph.export.logs
from tachograph.client.blackbox.environment import environment_summary
from tachograph.client.hello.identity import Identity
from tachograph.export.logs import JsonLines, RankFilter, configure
from tachograph.export.logs.json_lines import MESSAGE_LIMIT

ALLOY = Path(__file__).parents[3] / "deploy/alloy/training.alloy"
LAST_RANK = 130


class RunPosition:
    """A rank that stands at step 480, in backward."""

    def __init__(self, rank: int = 0) -> None:
        self.identity = Identity("llama", rank, 0, 1024, 0, 0)

    def position(self) -> tuple[int, str]:
        return 480, "backward"


Write = Callable[..., dict[str, Any]]


@pytest.fixture
def write() -> Write:
    """Format one record of a rank at step 480, and read the line back."""
    formatter = JsonLines(RunPosition(), RunPosition(5).identity)

    def line(message: object, *arguments: object, **given: Any) -> dict[str, Any]:
        extra = given.pop("extra", {})
        record = logging.getLogger("train").makeRecord(
            "train", given.pop("level", logging.INFO), "file", 1, message, arguments, given.pop("exc_info", None),
            extra=extra,
        )  # fmt: skip
        text = formatter.format(record)
        assert "\n" not in text
        found: dict[str, Any] = json.loads(text)
        return found

    return line


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """Yield the root logger, and leave it as it was."""
    logger = logging.getLogger()
    level, handlers, hook = logger.level, list(logger.handlers), sys.excepthook
    yield logger
    for handler in set(logger.handlers) - set(handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(level)
    sys.excepthook = hook


def test_a_line_says_when_where_and_what(write: Write) -> None:
    """Time, run, rank, step, phase, event, message and fields each have their own key."""
    line = write("epoch %d done", 3, extra={"event": "epoch", "fields": {"epoch": 3, "loss": 2.5}})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("timestamp"))
    assert line == {
        "level": "info", "run": "llama", "rank": 5, "step": 480, "phase": "backward", "event": "epoch",
        "message": "epoch 3 done", "logger": "train", "fields": {"epoch": 3, "loss": 2.5},
    }  # fmt: skip


def test_a_plain_record_has_no_event_and_no_fields(write: Write) -> None:
    """A field that was not given is absent, not empty."""
    assert {"event", "fields", "traceback"}.isdisjoint(write("hello"))


class Awkward:
    """An object that refuses to be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no")


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("message", "arguments", "extra"),
    [
        ("%d of them", ("many",), {}),
        ("%s", (Awkward(),), {}),
        ("first\nsecond\r\u2028third", (), {}),
        ("x" * 100_000, (), {}),
        ("lone surrogate \ud800", (), {}),
        ("fields", (), {"fields": {"bad": Awkward(), "nan": float("nan"), "set": {1}, ("a",): 1}}),
        ("fields", (), {"fields": 3, "event": Awkward}),
        ("own attribute", (), {"batch": float("inf")}),
        ("NaN inside", (), {"fields": {"scores": {"loss": float("nan")}, "list": [float("inf")]}}),
        ("itself inside", (), {"fields": {"self": CIRCLE, "epoch": 3}}),
        (ValueError("an object as message"), (), {}),
    ],
)
def test_no_record_breaks_the_line(write: Write, message: object, arguments: tuple[Any, ...], extra: Any) -> None:
    """Whatever a program logs becomes one line of JSON, and never an exception."""
    line = write(message, *arguments, extra=extra)
    assert len(line["message"]) <= MESSAGE_LIMIT
    json.dumps(line, allow_nan=False)


def test_an_exception_carries_the_end_of_its_traceback(write: Write) -> None:
    """The last lines name the error: a long traceback loses its beginning."""

    def deep(depth: int) -> None:
        if depth == 0:
            raise ValueError("the bottom " + "y" * 100_000)
        deep(depth - 1)

    try:
        deep(50)
    except ValueError:
        line = write("failed", exc_info=sys.exc_info(), level=logging.ERROR)
    assert line["traceback"].endswith("yyy")
    assert len(line["traceback"]) == 4 * MESSAGE_LIMIT


def spoken(rank: int, level: int, *, name: str = "train", text: str = "step", times: int = 1) -> int:
    """Return how many of `times` like records a rank writes within one minute."""
    rank_filter = RankFilter(rank, clock=lambda: 0.0)
    return sum(
        rank_filter.filter(logging.LogRecord(name, level, "", 0, f"{text} %d", (i,), None)) for i in range(times)
    )


class Unshowable:
    """Objects that a program may log by mistake."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


class Unreadable(dict[str, Any]):
    def items(self) -> Any:
        raise ValueError


def test_what_cannot_be_shown_is_logged_all_the_same() -> None:
    """Logging calls the filter outside of its own guard: what that raised, the program's logger call would raise."""
    nasty: dict[str, Any] = {
        "msg": Unshowable(),
        "event": Unshowable(),
        "fields": Unreadable(a=1),
        "other": Unshowable(),
    }
    record = logging.makeLogRecord({"name": "train", "levelno": logging.WARNING, "levelname": "WARNING", **nasty})
    assert RankFilter(0).filter(record)
    line = json.loads(JsonLines(None, Identity("llama", 0, 0, 1, 0, 0)).format(record))
    assert (line["event"], line["fields"]) == ("<Unshowable>", {"other": "<Unshowable>"})


def test_a_signal_handler_may_log_while_the_program_does() -> None:
    """In the middle of the filter itself: the same thread enters it again, and continues."""
    rank_filter = RankFilter(0)
    inner = logging.makeLogRecord({"name": "handler", "levelno": logging.WARNING, "msg": "heard"})

    def clock() -> float:
        rank_filter._clock = lambda: 0.0
        with rank_filter._lock:  # held by this thread, as while a signal strikes
            assert rank_filter.filter(inner)
        return 0.0

    rank_filter._clock = clock
    assert rank_filter.filter(logging.makeLogRecord({"name": "train", "levelno": logging.WARNING, "msg": "x"}))


def test_progress_comes_from_rank_0_and_one_rank_in_64() -> None:
    """1,024 ranks do not write 1,024 copies of a line."""
    assert [rank for rank in range(LAST_RANK) if spoken(rank, logging.INFO)] == [0, 64, 128]


def test_errors_come_from_every_rank_every_time() -> None:
    """An error is never sampled and never throttled."""
    assert all(spoken(rank, logging.ERROR, times=100) == 100 for rank in (0, 1, 63))


@pytest.mark.parametrize(("name", "written"), [("train", 3), ("torch.distributed.distributed_c10d", 1), ("nccl", 1)])
def test_warnings_are_throttled_by_kind(name: str, written: int) -> None:
    """A changing number makes no new kind; communicators warn from all ranks at once, and get one a minute."""
    assert spoken(1, logging.WARNING, name=name, times=100) == written


def test_a_silence_is_accounted_for() -> None:
    """The first line after a minute says how many were held back; nothing vanishes uncounted."""
    now = 0.0
    rank_filter = RankFilter(1, clock=lambda: now)

    def warn() -> logging.LogRecord | None:
        record = logging.LogRecord("nccl", logging.WARNING, "", 0, "retry", (), None)
        return record if rank_filter.filter(record) else None

    assert [warn() is not None for _ in range(6)] == [True, False, False, False, False, False]
    now = 60.0
    record = warn()
    assert record is not None
    assert record.suppressed == 5
    now = 120.0
    assert not hasattr(warn(), "suppressed")


def test_endless_new_kinds_cost_no_memory() -> None:
    """A program that makes a new text each time is not remembered without end."""
    rank_filter = RankFilter(0, clock=lambda: 0.0)
    for i in range(1000):
        rank_filter.filter(logging.LogRecord("train", logging.WARNING, "", 0, f"text {i}", (), None))
    assert len(rank_filter._kinds) == 256


def test_rank_0_tells_the_environment_once_and_no_secrets(root: logging.Logger, monkeypatch: Any) -> None:
    """Versions and the variables that steer a run; a token is no such variable, whatever its prefix."""
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("TACHOGRAPH_API_TOKEN", "hush")
    monkeypatch.setenv("HOME_GROWN", "hush")
    stream = io.StringIO()
    configure(RunPosition(0), stream=stream)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["event"] == "environment"
    assert line["fields"]["variables"]["NCCL_DEBUG"] == "WARN"
    assert "hush" not in stream.getvalue()
    quiet = io.StringIO()
    configure(RunPosition(1), stream=quiet)
    assert quiet.getvalue() == ""


def test_configuring_again_replaces_its_own_handler_only(root: logging.Logger) -> None:
    """No line is written twice, and nobody else's handler is touched."""
    other = logging.NullHandler()
    root.addHandler(other)
    first, second = io.StringIO(), io.StringIO()
    configure(RunPosition(1), stream=first)
    configure(RunPosition(1), stream=second)
    logging.getLogger("train").error("once")
    root.removeHandler(other)
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_importing_sets_nothing_up() -> None:
    """Importing is free of effects: no handler, no hook, no thread."""
    code = "import logging, sys, threading; import tachograph.export.logs; assert not logging.getLogger().handlers; \
            assert sys.excepthook is sys.__excepthook__; assert threading.active_count() == 1"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)


def test_an_unhandled_exception_of_any_rank_is_logged_and_ends_the_process(tmp_path: Path) -> None:
    """Every rank's traceback is in its file, and the process ends as it would have: same text, same status."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import sys, tachograph, tachograph.export.logs
        recorder = tachograph.Recorder(run="r", rank=7, world_size=8)
        tachograph.export.logs.configure(recorder, path=sys.argv[1])
        with recorder.step(480), recorder.phase("backward"):
            pass
        raise RuntimeError("boom")
        """),
        encoding="utf-8",
    )
    path = tmp_path / "rank7.jsonl"
    environment = {**os.environ, "TACHOGRAPH_SOCKET": str(tmp_path / "none.sock")}
    done = subprocess.run(
        [sys.executable, str(script), str(path)], capture_output=True, text=True, env=environment, check=False,
        timeout=90,
    )  # fmt: skip
    assert done.returncode == 1
    assert "RuntimeError: boom" in done.stderr
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    (line,) = [line for line in lines if line.get("event") == "exception"]
    assert (line["level"], line["rank"], line["step"], line["event"]) == ("critical", 7, 481, "exception")
    assert "RuntimeError: boom" in line["traceback"]


@pytest.mark.parametrize("fault", [{"path": "/nowhere/at/all.jsonl"}, {"level": "LOUD"}])
def test_what_cannot_be_set_up_says_so(root: logging.Logger, fault: dict[str, Any]) -> None:
    """At start a fault is an error; it is not swallowed into a silent log."""
    with pytest.raises((OSError, ValueError)):
        configure(RunPosition(0), **fault)


def test_a_summary_needs_no_torch() -> None:
    """Where nothing is loaded, nothing is claimed."""
    code = "from tachograph.client.blackbox.environment import environment_summary as s; assert 'torch' not in s({})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)
    assert environment_summary({})["variables"] == {}


def test_alloy_reads_the_keys_that_are_written(write: Write) -> None:
    """The example for Loki extracts keys that a line has, and labels with none that grows with ranks or steps."""
    text = ALLOY.read_text(encoding="utf-8")
    assert text.count("{") == text.count("}")
    blocks = {
        name: set(re.findall(r"(\w+)\s+= \"\"", body))
        for name, body in re.findall(r"stage\.(\w+) \{(.*?)\n\t\}", text, re.S)
    }
    line = write("x", extra={"event": "e"})
    assert blocks["json"] <= set(line)
    assert blocks["labels"] == {"level", "run"}
    assert blocks["structured_metadata"] | blocks["labels"] | {"timestamp"} == blocks["json"]


def test_the_front_door_is_three_names() -> None:
    """The public names are the documented ones."""
    assert set(tachograph.export.logs.__all__) == {"configure", "JsonLines", "RankFilter"}
