"""How processes end, and what the exporter hears of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.rank import FAILURE_REASONS
from tachograph.client.core.notice import raised_by_signal
from tachograph.client.recorder import Recorder
from tachograph.client.transport import sender, shutdown
from tachograph.client.transport.failure_reason import _CATEGORIES, LONGEST_CHAIN, describe
from tests.client.conftest import BLOCKED_IN_C

Start = Callable[..., Any]


def bye(exporter: Any) -> tuple[str, str, str]:
    """Outcome, category and message of the one bye."""
    exporter.wait_for("bye")
    (frame,) = exporter.frames("bye")
    return frame["outcome"], frame["category"], frame["message"]


def test_a_normal_end_is_finished(exporter: Any, start: Start) -> None:
    """At exit the last counts and a bye leave by themselves."""
    process = start(
        """
        while not recorder._calls.sender._answered: time.sleep(0.01)
        for _ in range(3):
            with recorder.step(): pass
        """
    )
    assert process.end() == (0, "")
    assert bye(exporter) == ("finished", "", "")
    assert exporter.talks[0].frames[-2]["metrics"]["steps_total"] == 3


def test_an_answer_that_comes_after_the_bye_is_heard(
    exporter: Any, record: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training may be over before a busy exporter has answered its hello."""
    monkeypatch.setattr(sender, "SHUTDOWN_SECONDS", 60.0)
    monkeypatch.setattr(shutdown, "LIMIT_SECONDS", 60.0)
    exporter.answer = None
    recorder = record()
    exporter.wait_for("hello")
    closing = threading.Thread(target=recorder.close)
    closing.start()
    exporter.wait_for("bye")
    assert not recorder.received
    exporter.tell({"ok": True, "last_step": None})
    closing.join()
    assert recorder.received


def test_an_unhandled_exception_is_failed(exporter: Any, start: Start) -> None:
    """Type and first line reach the exporter; the hook that was there before still runs, and the status is 1."""
    process = start(
        """
        exporter_seen = sys.excepthook
        while not recorder._calls.sender._answered: time.sleep(0.01)
        def model(): raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB\\nsecond line " + "x" * 9999)
        with recorder.step(), recorder.phase("forward"): model()
        """
    )
    status, errors = process.end()
    assert status == 1
    assert "in model" in errors
    assert "Traceback" in errors
    assert bye(exporter) == ("failed", "oom", "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB")


def test_an_earlier_hook_is_kept(exporter: Any, start: Start) -> None:
    """Somebody else's sys.excepthook is called as before."""
    process = start(
        """
        recorder.close()
        import tachograph.client.transport.shutdown as farewell
        assert sys.excepthook is farewell._on_exception
        farewell._previous_hook = lambda kind, error, trace: print("theirs", error, file=sys.stderr)
        1 / 0
        """
    )
    assert process.end() == (1, "theirs division by zero\n")


def test_an_exception_that_is_caught_is_no_bye(exporter: Any, start: Start) -> None:
    """A step may fail and be tried again: only what ends the process ends the record."""
    process = start(
        """
        try:
            with recorder.step(): raise ValueError("bad batch")
        except ValueError: pass
        say("caught"); time.sleep(30)
        """
    )
    process.hear("caught")
    exporter.next_state()
    assert exporter.frames("bye") == []


def test_interrupt(exporter: Any, start: Start) -> None:
    """Ctrl-C is told as interrupted."""
    # A shell starts what it puts in the background with SIGINT ignored, and so would all these tests be.
    process = start("signal.signal(signal.SIGINT, signal.default_int_handler); say('ready'); time.sleep(30)")
    process.hear("ready")
    exporter.wait_for()
    process.popen.send_signal(signal.SIGINT)
    assert process.end()[0] == -signal.SIGINT
    assert bye(exporter) == ("failed", "interrupted", "KeyboardInterrupt")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("code", ["say('ready'); time.sleep(30)", BLOCKED_IN_C])
def test_a_signal_ends_the_process_without_a_word(
    exporter: Any, start: Start, until: Callable[..., Any], code: str, number: signal.Signals
) -> None:
    """It is the kernel's to end it, and to say that it was asked to end: nothing of ours comes in between."""
    process = start(code)
    process.hear("ready")
    exporter.wait_for()
    process.popen.send_signal(number)
    assert process.end() == (-number, "")
    until(lambda: exporter.talks[0].ended_at)
    assert exporter.frames("bye") == []


@pytest.mark.parametrize(
    ("code", "status"), [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)]
)
def test_sudden_death_says_nothing(
    exporter: Any, start: Start, code: str, status: int, until: Callable[..., Any]
) -> None:
    """`os._exit` and SIGKILL leave an end without a bye: the exporter calls it dead."""
    process = start(f"say('ready')\nwhile not recorder._calls.sender._answered: time.sleep(0.01)\n{code}")
    process.hear("ready")
    assert process.end()[0] == status
    until(lambda: exporter.talks[0].ended_at)
    assert exporter.frames("bye") == []


def test_a_signal_to_a_child_that_is_just_forked_ends_the_child_alone(
    exporter: Any, start: Start, tmp_path: Path
) -> None:
    """As `Pool.terminate` sends one: neither lost, nor taken for one to the parent."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "struck = lambda: 'STRUCK' in os.environ and os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.register_at_fork(after_in_child=struck)\n"  # before the recorder's: it runs first
    )
    process = start(
        """
        while not recorder._calls.sender._answered: time.sleep(0.01)
        os.environ["STRUCK"] = "1"
        for _ in range(3):
            child = os.fork()
            if not child: time.sleep(20); os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        with recorder.step(): pass
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert process.end() == (0, "")
    assert bye(exporter) == ("finished", "", "")


def test_a_stalled_exporter_does_not_keep_a_process_from_its_end(exporter: Any, start: Start) -> None:
    """A goodbye that cannot be delivered is given up while the exporter still reads nothing."""
    process = start(
        """
        from tachograph.client.transport import sender
        sender.HEARTBEAT_SECONDS = sender._LEAST_GAP = 0.0
        say("ready")
        while recorder._calls.sender._connection is None or recorder._calls.sender._connection.idle: time.sleep(0.01)
        recorder.close()
        say("closed")
        """
    )
    process.hear("ready")
    exporter.wait_for()
    exporter.stalled.set()
    process.hear("closed")
    assert process.end()[0] == 0
    assert exporter.frames("bye") == []


def test_close_with_an_error(exporter: Any, start: Start) -> None:
    """A framework that turns exceptions into a status can say so."""
    process = start(
        """
        while not recorder._calls.sender._answered: time.sleep(0.01)
        try: raise ConnectionError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242")
        except Exception as error: recorder.close(error)
        """
    )
    assert process.end()[0] == 0
    outcome, category, _ = bye(exporter)
    assert (outcome, category) == ("failed", "collective")


@pytest.fixture(params=["spawn", "fork"])
def method(request: pytest.FixtureRequest) -> str:
    """How multiprocessing makes the child."""
    return str(request.param)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("pass", ("finished", "", "")),
        ("raise ValueError('loss is nan')", ("failed", "nonfinite", "ValueError: loss is nan")),
        ("sys.exit(0)", ("finished", "", "")),
        ("sys.exit(3)", ("failed", "exit_code", "exit code 3")),
        ("raise SystemExit(3)", ("failed", "exit_code", "exit code 3")),
    ],
)
def test_children_of_multiprocessing_say_goodbye(
    exporter: Any, start: Start, method: str, end: str, expected: tuple[str, str, str]
) -> None:
    """They leave by os._exit, past atexit and excepthook, and are told all the same."""
    folder = exporter.path.parent
    (folder / "child.py").write_text(
        f"import sys, time\nfrom tachograph.client.recorder import Recorder\n"
        f"def train():\n    recorder = Recorder(run='child')\n"
        f"    while not recorder._calls.sender._answered: time.sleep(0.01)\n    {end}\n"
    )
    process = start(
        f"""
        import multiprocessing
        sys.path.insert(0, {str(folder)!r})
        import child
        recorder.close()
        worker = multiprocessing.get_context({method!r}).Process(target=child.train)
        worker.start(); worker.join()
        """
    )
    process.end()
    frames = [talk.of("bye") for talk in exporter.talks if talk.of("hello") and talk.of("hello")[0]["run"] == "child"]
    assert [(each["outcome"], each["category"], each["message"]) for (each,) in frames] == [expected]


class Wordless(Exception):  # noqa: N818 - a name
    def __str__(self) -> str:
        raise RuntimeError("no words")


def caused(text: str, cause: str) -> BaseException:
    error = RuntimeError(text)
    error.__cause__ = RuntimeError(cause)
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), ("oom", "MemoryError")),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: out of memory"), "oom"),
        (type("DistBackendError", (RuntimeError,), {})("timeout"), "collective"),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1970"), "collective"),
        (FloatingPointError("gradient is non-finite"), "nonfinite"),
        (ValueError("Loss is NaN, stopping"), "nonfinite"),
        (ValueError("no info in the banana"), "exception"),
        (RuntimeError("DataLoader worker (pid 17) is killed by signal: Killed."), "data"),
        (RuntimeError("DataLoader worker (pid 17) is killed by signal: Terminated. "), "terminated"),
        (RuntimeError("DataLoader worker (pid 17) is killed by signal: Hangup. "), "terminated"),
        (RuntimeError("DataLoader worker (pid 17) is killed by signal: Interrupt. "), "interrupted"),
        (RuntimeError("DataLoader worker (pid 17) exited unexpectedly with exit code 143. Details are"), "terminated"),
        (RuntimeError("DataLoader worker (pid 17) exited unexpectedly with exit code 1. Details are"), "data"),
        (RuntimeError("DataLoader worker (pid(s) 17, 18) exited unexpectedly"), "data"),
        (
            caused("DataLoader worker (pid(s) 17, 18) exited unexpectedly", "killed by signal: Terminated."),
            "terminated",
        ),
        (caused("DataLoader worker (pid(s) 17, 18) exited unexpectedly", "killed by signal: Killed."), "data"),
        (RuntimeError("Process 4242 got signal: SIGTERM, shutting down"), "terminated"),
        (KeyboardInterrupt(), ("interrupted", "KeyboardInterrupt")),
        (Wordless(), ("exception", "Wordless")),
        (ValueError("x" * 9999), ("exception", "ValueError: " + "x" * 500)),
        (ValueError("\n\n first \n second"), ("exception", "ValueError: first")),
    ],
)
def test_categories(error: BaseException, expected: Any) -> None:
    """Each kind of failure has its word, and the message is one line of at most 512 characters."""
    found = describe(error)
    assert (found if isinstance(expected, tuple) else found[0]) == expected


def chained(behind: BaseException, *, suppressed: bool = False) -> BaseException:
    """An error of a loader, raised while another was handled."""
    error = RuntimeError("DataLoader worker failed")
    error.__context__, error.__suppress_context__ = behind, suppressed
    return error


class _Preempted:
    """A handler that is an object, and one with a method."""

    def __call__(self, number: int, frame: object) -> None:
        raise LookupError("preempted")

    def handle(self, number: int, frame: object) -> None:
        raise LookupError("preempted")


def _handle(reason: str, number: int, frame: object) -> None:
    raise LookupError(reason)


def _struck(number: int, handler: Any) -> Iterator[BaseException]:
    """What a signal handler raises while it is installed."""
    before = signal.signal(number, handler)
    try:
        signal.raise_signal(number)
    except LookupError as error:
        yield error
    finally:
        signal.signal(number, before)


HANDLERS: dict[str, Any] = {
    "function": lambda number, frame: _handle("preempted", number, frame),
    "object": _Preempted(),
    "method": _Preempted().handle,
    "partial": partial(_handle, "preempted"),
    "partial of an object": partial(_Preempted()),
    "partial of a method": partial(_Preempted().handle),
}


@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.parametrize(
    ("number", "category"),
    [
        (signal.SIGTERM, "terminated"),
        (signal.SIGHUP, "terminated"),
        (signal.SIGINT, "interrupted"),
        (signal.SIGUSR1, "terminated"),
        (signal.SIGUSR2, "terminated"),
        (signal.SIGXCPU, "terminated"),
        (signal.SIGALRM, "exception"),
    ],
)
def test_what_a_handler_raised_is_how_the_process_was_asked_to_end(kind: str, number: int, category: str) -> None:
    """Whatever is callable is a handler; also behind what the program made of the exception, shown or not."""
    (error,) = [(one, raised_by_signal(one), describe(one)[0]) for one in _struck(number, HANDLERS[kind])]
    assert error[1:] == (True, category)
    for suppressed in (False, True):
        for made in _struck(number, HANDLERS[kind]):
            found = describe(chained(made, suppressed=suppressed))[0]
            assert found == (category if category != "exception" else "data")


@pytest.mark.parametrize("suppressed", [False, True])
def test_ctrl_c_in_a_loader_is_no_data_failure(*, suppressed: bool) -> None:
    """Anywhere in the chain, also beside a cause that was given."""
    assert describe(chained(KeyboardInterrupt(), suppressed=suppressed))[0] == "interrupted"
    assert describe(chained(chained(KeyboardInterrupt()), suppressed=suppressed))[0] == "interrupted"
    beside = chained(KeyboardInterrupt(), suppressed=suppressed)
    beside.__cause__ = ValueError("bad batch")
    assert describe(beside)[0] == "interrupted"


def test_a_chain_is_followed_to_some_length_and_once() -> None:
    """One that runs in a circle ends, and an exception without words behind another costs nothing."""
    circle = chained(ValueError("x"))
    assert circle.__context__ is not None
    circle.__context__.__context__ = circle
    assert describe(circle)[0] == "data"
    assert describe(chained(Wordless())) == ("data", "RuntimeError: DataLoader worker failed")
    error: BaseException = KeyboardInterrupt()
    for _ in range(LONGEST_CHAIN):
        error = chained(error)
    assert describe(error)[0] == "data"


def test_the_client_says_what_the_catalog_knows() -> None:
    """A word that only one side has would be counted as `exception`, and page for a run that was told to end."""
    without_pattern = {"exit_code", "exception"}
    assert {category for category, _ in _CATEGORIES} | without_pattern == set(FAILURE_REASONS)


def test_a_loaders_own_exception_is_a_data_failure() -> None:
    """What comes out of the iteration of `recorder.data` is the data's fault, whatever its type."""
    from tachograph.client.recorder import Recorder

    def loader() -> Any:
        yield 1
        raise FileNotFoundError("shard 7")

    recorder = Recorder(socket="/nonexistent")
    with pytest.raises(FileNotFoundError) as caught:
        list(recorder.data(loader()))
    recorder.close()
    assert describe(caught.value) == ("data", "FileNotFoundError: shard 7")
