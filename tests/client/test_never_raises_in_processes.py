"""Calls at moments that only a real process has: out of files, memory or stack, forked, ending, interrupted."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]
Until = Callable[..., Any]
CALLS = str(Path(__file__).with_name("test_never_raises.py"))

EVERY = """
import warnings
def every(recorder):
    with recorder.step(accumulating=True): pass
    for batch in recorder.data([1, 2]):
        with recorder.step() as step, recorder.phase("forward"), recorder.phase("checkpoint"):
            with recorder.collective("all_reduce", 8), recorder.phase("wrong"), recorder.count_flops():
                step.log(loss=1.0, wrong=object())
            recorder.tag("eval"); recorder.tag("wrong"); recorder.invariant("i", 1); recorder.threshold("wrong", 1)
    recorder.watch(object()); recorder.checkpoint_saved(1); recorder.checkpoint_failed(); recorder.resumed(1)
    recorder.add_source(None); recorder.position(); recorder.identity; recorder.last_step; recorder.step(tag=5)
"""


def program(code: str) -> str:
    return EVERY + textwrap.dedent(code)


def test_without_a_free_descriptor(exporter: Any, start: Start) -> None:
    """Without logging imported or files to open, a new recorder does nothing, the old one continues, none raises."""
    process = start(
        program(
            """
            import errno, resource
            assert "logging" not in sys.modules, "this would show nothing"
            while not recorder._calls.sender._answered: time.sleep(0.01)
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            taken = []
            try:
                while True: taken.append(os.dup(0))
            except OSError as error:
                assert error.errno == errno.EMFILE
            every(recorder)
            other = Recorder(run="other", rank=object(), tier="wrong")
            every(other); other.close()
            recorder._calls.sender._disconnect()
            every(recorder)
            for descriptor in taken: os.close(descriptor)
            recorder.checkpoint_saved(7)
            say("alive"); time.sleep(20)
            """
        )
    )
    process.hear("alive")
    exporter.wait_for(where=lambda frame: any(event.get("step") == 7 for event in frame["events"]))


def test_out_of_memory(exporter: Any, start: Start) -> None:
    """Each call returns where not even a small object can be made; with memory again, recording continues."""
    process = start(
        program(
            """
            import logging, resource
            every(recorder)  # whatever it loads is loaded
            while not recorder._calls.sender._answered: time.sleep(0.01)
            size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), hard))
            taken, block = [], 1 << 20
            while block >= 16:
                try:
                    while True: taken.append(bytearray(block))
                except MemoryError:
                    block //= 2
            ours = 0
            try:
                for _ in range(30): every(recorder)
                Recorder(run="other").close()
                every(recorder)
            except MemoryError as error:  # of `every`, which makes objects of its own
                trace = error.__traceback__
                while trace is not None:
                    ours += "tachograph" in trace.tb_frame.f_code.co_filename and trace.tb_next is None
                    trace = trace.tb_next
            taken.clear()
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            recorder.checkpoint_saved(7)
            say(f"ours {ours}"); time.sleep(20)
            """
        )
    )
    process.hear("ours 0")
    exporter.wait_for(where=lambda frame: any(event.get("step") == 7 for event in frame["events"]))


def test_counting_flops_with_no_memory_for_any_one_object(exporter: Any, start: Start) -> None:
    """Wherever in it an allocation fails, entering and leaving a counted block raises nothing of ours."""
    pytest.importorskip("_testcapi", reason="an interpreter without its test module")
    process = start(
        program(
            """
            import _testcapi
            every(recorder)
            def counted():
                with recorder.count_flops(): pass
            ours = tried = 0
            for failing in range(1, 200):
                for objects in (1, 5, 20):
                    _testcapi.set_nomemory(failing, failing + objects)
                    try: counted()
                    except MemoryError as error:
                        trace = error.__traceback__  # None where even that could not be made
                        while trace is not None and trace.tb_next is not None: trace = trace.tb_next
                        ours += trace is not None and "flop_count" in trace.tb_frame.f_code.co_filename
                    finally: _testcapi.remove_mem_hooks()
                    tried += 1
            say(f"ours {ours} of {tried}")
            """
        )
    )
    process.hear("ours 0 of 597")


def test_deep_in_the_stack(exporter: Any, start: Start) -> None:
    """A call that has a few frames left returns; what the loop's own recursion raises is the loop's."""
    process = start(
        program(
            """
            reached = 0
            def descend():
                global reached
                try:
                    with recorder.step() as step, recorder.phase("checkpoint"), recorder.collective("all_reduce", 8):
                        step.log(loss=1.0, other=object()); recorder.tag("wrong"); recorder.phase([])
                except RecursionError as error:  # of the call itself, not of what is in it
                    trace = error.__traceback__
                    while trace.tb_next is not None: trace = trace.tb_next
                    assert trace.tb_frame.f_code.co_name == "descend", trace.tb_frame
                    raise
                reached += 1
                descend()
            try: descend()
            except RecursionError: pass
            assert reached > 100
            with recorder.step(): pass
            say("alive"); time.sleep(20)
            """
        )
    )
    process.hear("alive")
    exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] > 100)


def test_in_a_forked_child(exporter: Any, start: Start) -> None:
    """Any call with any arguments, in the child and in a child of the child."""
    process = start(
        f"""
        import runpy
        exercise = runpy.run_path({CALLS!r})["exercise"]
        child = os.fork()
        if child == 0:
            exercise(recorder, 60)
            grandchild = os.fork()
            if grandchild == 0:
                exercise(recorder, 20); os._exit(7)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        recorder.checkpoint_saved(7)
        say("alive"); time.sleep(20)
        """
    )
    process.hear("alive")
    exporter.wait_for(where=lambda frame: any(event.get("step") == 7 for event in frame["events"]))


def test_at_the_interpreters_end(exporter: Any, start: Start) -> None:
    """Before and after our own goodbye, from a daemon thread, and when modules have lost their contents."""
    process = start(
        program(
            """
            import atexit
            from tachograph.client.transport import sender, shutdown
            sender.SHUTDOWN_SECONDS = shutdown.LIMIT_SECONDS = 60.0  # what happens counts, not how soon
            class Last:
                def __del__(self, recorder=recorder, every=every, kind=Recorder):
                    every(recorder); recorder.close(); kind()
            last = Last(); sys.last_of_all = Last()
            def again():
                every(recorder); recorder.close(); every(recorder)
                every(Recorder(run="made at exit"))
            atexit.register(again)
            threading.Thread(target=lambda: [every(recorder) for _ in iter(int, 1)], daemon=True).start()
            every(recorder)
            """
        )
    )
    assert process.end()[0] == 0
    exporter.wait_for("bye")


def test_an_error_at_exit_is_heard_by_nobody(exporter: Any, start: Start) -> None:
    """The error output holds notices of misuse, and neither a traceback nor an exception ignored in a finalizer."""
    process = start(
        program(
            """
            class Last:
                def __del__(self, recorder=recorder, every=every): every(recorder); recorder.close()
            sys.last_of_all = Last()
            """
        )
    )
    status, errors = process.end()
    assert status == 0
    assert "Traceback" not in errors
    assert "ignored" not in errors


def test_in_a_signal_handler(exporter: Any, start: Start) -> None:
    """A handler that records, forks or makes a recorder, wherever it interrupts the main thread: no deadlock.

    Modules are loaded before: a handler that imports in the middle of an import can wait for ever on a thread that
    imports, too, in any program, up to Python 3.11. Handlers interrupt each other, but no more than four: a machine on
    which one takes longer than the timer would have no end of them.
    """
    process = start(
        program(
            """
            import difflib, logging
            every(recorder)
            heard = depth = 0
            again = lambda: signal.setitimer(signal.ITIMER_REAL, 0.003)
            def handler(number, frame):
                global heard, depth
                heard += 1; depth += 1
                if depth < 4: again()
                every(recorder)
                if heard % 50 == 0: Recorder(run="from a handler").close()
                if heard % 50 == 25:
                    child = os.fork()
                    if child == 0: every(recorder); os._exit(0)
                    assert os.waitpid(child, 0)[1] == 0
                depth -= 1
                again()
            signal.signal(signal.SIGALRM, handler)
            again()
            while heard < 300:
                every(recorder)
                if heard % 10 == 0: Recorder(run="from the loop").close()
            signal.setitimer(signal.ITIMER_REAL, 0)
            with recorder.step(): pass
            recorder.checkpoint_saved(7)
            say("alive"); time.sleep(20)
            """
        )
    )
    process.hear("alive")
    exporter.wait_for(where=lambda frame: any(event.get("step") == 7 for event in frame["events"]))


def test_every_descriptor_closed(exporter: Any, start: Start) -> None:
    """A program that makes itself a daemon closes all it has, ours among them: it trains on."""
    process = start(
        program(
            """
            while not recorder._calls.sender._answered: time.sleep(0.01)
            os.closerange(3, 256)
            for _ in range(20): every(recorder); time.sleep(0.01)
            recorder.close()
            Recorder(run="again")
            say("alive")
            """
        )
    )
    process.hear("alive")
    assert process.end()[0] == 0


HANDLER = """
import logging
class Angry(logging.Handler):
    def emit(self, record): raise {error}("of the log handler")
logging.getLogger("tachograph").addHandler(Angry())
logging.getLogger().addHandler(Angry())
"""


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
def test_a_log_handler_that_raises(error: str, exporter: Any, start: Start, until: Until) -> None:
    """In the constructor, in a call, and in the sender thread, whose telemetry continues."""
    exporter.stop()
    exporter.path.unlink()
    process = start(
        HANDLER.format(error=error)
        + program(
            """
            from tachograph.client.core import notice
            while not any(subject == "exporter" for subject in notice._logged): time.sleep(0.01)
            if "ValueError" in Angry.emit.__code__.co_names:
                every(recorder); Recorder(rank=object()).close()
            say("alive"); time.sleep(20)
            """
        )
    )
    process.hear("alive")
    exporter.start()
    exporter.wait_for()
