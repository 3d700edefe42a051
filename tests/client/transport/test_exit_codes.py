"""Processes that end by an exit code: what their bye says, in a script of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.transport.failure_reason import End, end_by

Start = Callable[..., Any]

CONNECTED = "while not recorder._calls.sender._answered: time.sleep(0.01)"
TRAIN = """
class CudaError(RuntimeError): pass
def train():
    for _ in range(3):
        with recorder.step(): pass
    raise CudaError("CUDA error: device-side assert triggered")
"""
HYDRA = """
def run_and_report(func):  # as hydra/_internal/utils.py: the traceback is printed, the exception is gone
    try:
        return func()
    except Exception as error:
        print(f"Error executing job: {error}", file=sys.stderr)
    sys.exit(1)
run_and_report(train)
"""
FIRE = """
class FireExit(SystemExit):  # as fire/core.py
    pass
def fire(component):
    try:
        component()
    except CudaError as error:
        print("ERROR:", error, file=sys.stderr)
        raise FireExit(2) from error
"""


def bye_of(exporter: Any) -> dict[str, Any]:
    """The one bye, without what every frame has."""
    exporter.wait_for("bye")
    (frame,) = exporter.frames("bye")
    return {key: value for key, value in frame.items() if key not in ("v", "type")}


def failed(message: str, code: int = 1, category: str = "exit_code") -> dict[str, Any]:
    return {"outcome": "failed", "category": category, "message": message, "exit_code": code}


FINISHED_BYE = {"outcome": "finished", "category": "", "message": "", "at_exit": True}
BY_WORD = {"outcome": "finished", "category": "", "message": ""}
HANDLER = "def handler(*_): {}\nsignal.signal(signal.{}, handler)\n"
LOADER = """
def loader():
    yield 1
    signal.raise_signal(signal.{})
for _ in recorder.data(loader()): pass
"""


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("sys.exit(3)", 3, failed("exit code 3", 3)),
        ("sys.exit(-1)", 255, failed("exit code 255", 255)),
        ("sys.exit('no such dataset: c4\\nsecond line')", 1, failed("exit code 1: no such dataset: c4")),
        ("sys.exit()", 0, FINISHED_BYE),
        ("sys.exit(0)", 0, FINISHED_BYE),
        ("sys.exit(None)", 0, FINISHED_BYE),
        ("sys.exit(256)", 0, FINISHED_BYE),  # the kernel keeps eight bits
        ("sys.exit(130)", 130, failed("exit code 130", 130, "interrupted")),
        ("signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))\nsignal.raise_signal(signal.SIGTERM)",
         143, failed("exit code 143", 143, "terminated")),
        ("try: 1 / 0\nexcept Exception as error:\n    print(error)\n    sys.exit(1)",
         1, failed("exit code 1 after ZeroDivisionError: division by zero")),
        ("try: raise MemoryError\nexcept MemoryError: sys.exit(1)",
         1, failed("exit code 1 after MemoryError", 1, "oom")),
        (TRAIN + HYDRA, 1, failed("exit code 1")),
        (TRAIN + "import argparse; argparse.ArgumentParser().error('no such option')", 2, failed("exit code 2", 2)),
    ],
)  # fmt: skip
def test_a_script_that_leaves_by_sys_exit(
    exporter: Any, start: Start, code: str, status: int, expected: dict[str, Any]
) -> None:
    """A non-zero exit code is a failure, with the exception that was being handled where there is one."""
    process = start("\n".join((CONNECTED, code)))
    assert process.end()[0] == status
    assert bye_of(exporter) == expected


def test_a_caught_exit_after_which_training_goes_on_does_not_count(exporter: Any, start: Start) -> None:
    """An exit that click or a sweep catches is void after the next completed step: a normal end is one again."""
    process = start(
        CONNECTED
        + """
for trial in range(2):
    try:
        with recorder.step(): pass
        if trial == 0: sys.exit(1)
    except SystemExit: pass
"""
    )
    assert process.end()[0] == 0
    assert bye_of(exporter) == FINISHED_BYE


def test_the_last_exit_counts(exporter: Any, start: Start) -> None:
    """An exit that is caught and followed by another one is not the process's."""
    process = start(CONNECTED + "\ntry: sys.exit(1)\nexcept SystemExit: pass\nsys.exit(0)")
    assert process.end()[0] == 0
    assert bye_of(exporter) == FINISHED_BYE


def test_sys_exit_in_a_thread_ends_the_thread_only(exporter: Any, start: Start) -> None:
    """A prefetch thread that leaves says nothing about the process."""
    process = start(
        CONNECTED + "\nthread = threading.Thread(target=sys.exit, args=(1,)); thread.start(); thread.join()"
    )
    assert process.end()[0] == 0
    assert bye_of(exporter) == FINISHED_BYE


def test_an_exception_past_a_replaced_hook(exporter: Any, start: Start) -> None:
    """A program that sets `sys.excepthook` without calling ours still ends by its exception."""
    process = start(
        CONNECTED + "\nsys.excepthook = lambda *_: print('pretty', file=sys.stderr)\nraise ValueError('mine')"
    )
    assert process.end() == (1, "pretty\n")
    assert bye_of(exporter) == {"outcome": "failed", "category": "exception", "message": "ValueError: mine"}


@pytest.mark.parametrize(
    "code", ["raise SystemExit(1)", "python_exit(1)", "try: 1 / 0\nfinally: recorder.close()", FIRE]
)
def test_what_cannot_be_seen_from_inside(exporter: Any, start: Start, code: str) -> None:
    """A SystemExit raised by hand passes every hook, and so does a `sys.exit` looked up before the recorder was made.

    The bye says finished, and the exporter has to look; also after a `close()` that every end comes by.
    """
    lines = (CONNECTED, "python_exit = sys.exit.__wrapped__", TRAIN, code, "fire(train)" if code is FIRE else "")
    process = start("\n".join(lines))
    assert process.end()[0] in (1, 2)
    assert bye_of(exporter) == FINISHED_BYE


@pytest.mark.parametrize("end", ["os._exit(1)", "sys.exit(1)", "raise SystemExit(1)", "1 / 0"])
def test_what_the_program_said_stands(exporter: Any, start: Start, end: str) -> None:
    """After `recorder.close()` no exit says otherwise, as of a worker that Ray ends with status 1 when it is done."""
    process = start(f"{CONNECTED}\nrecorder.close()\n{end}")
    assert process.end()[0] == 1
    assert bye_of(exporter) == BY_WORD


CELLS = """
from code import InteractiveInterpreter
sys.ps1 = "In: "  # as IPython and its kernels have it
cells = InteractiveInterpreter({"recorder": recorder})
for cell in (%s):
    cells.runsource(cell + "\\n", symbol="exec")
"""
RAISES = "with recorder.step(): raise MemoryError"
STEPS = "with recorder.step(): pass"


@pytest.mark.parametrize(
    ("cells", "category"),
    [
        ((STEPS, RAISES), "oom"),
        ((STEPS, RAISES, "1 + 1"), "oom"),
        ((STEPS, "with recorder.phase('eval'): raise MemoryError"), "oom"),
        ((STEPS, "for _ in recorder.data(x / 0 for x in (1, 2)): pass"), "data"),
        ((STEPS, RAISES, STEPS), ""),
        ((STEPS, "1 / 0"), ""),
        ((STEPS, RAISES, "1 / 0"), ""),
        ((STEPS, "try:\n  " + RAISES + "\nexcept MemoryError: pass"), ""),
    ],
)
def test_a_notebook_whose_cell_raised(exporter: Any, start: Start, cells: tuple[str, ...], category: str) -> None:
    """An interpreter goes on after an exception: one that left the training, which did not go on, is its end."""
    process = start(CONNECTED + CELLS % "".join(f"{cell!r}, " for cell in cells))
    assert process.end()[0] == 0
    bye = bye_of(exporter)
    assert (bye["outcome"], bye["category"]) == ("failed" if category else "finished", category)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (HANDLER.format("sys.exit(1)", "SIGTERM") + LOADER.format("SIGTERM"), ("terminated", "exit code 1")),
        (HANDLER.format("sys.exit(1)", "SIGHUP")
         + "try: raise OSError\nexcept OSError: signal.raise_signal(signal.SIGHUP)",
         ("terminated", "exit code 1 after OSError")),
        (HANDLER.format("sys.exit(2)", "SIGINT") + LOADER.format("SIGINT"), ("interrupted", "exit code 2")),
        (HANDLER.format("raise ValueError('mine')", "SIGTERM") + LOADER.format("SIGTERM"),
         ("terminated", "ValueError: mine")),
        *(
            (HANDLER.format("raise ValueError('mine')", warning) + LOADER.format(warning),
             ("terminated", "ValueError: mine"))
            for warning in ("SIGUSR1", "SIGUSR2", "SIGXCPU")
        ),
        (HANDLER.format("sys.exit(1)", "SIGUSR1") + LOADER.format("SIGUSR1"), ("terminated", "exit code 1")),
        (HANDLER.format("raise ValueError('mine')", "SIGALRM") + LOADER.format("SIGALRM"),
         ("data", "ValueError: mine")),
        (HANDLER.format("pass", "SIGTERM") + LOADER.format("SIGTERM") + "sys.exit(1)", ("exit_code", "exit code 1")),
    ],
)  # fmt: skip
def test_a_handler_that_ends_the_process(exporter: Any, start: Start, code: str, expected: tuple[str, str]) -> None:
    """What a scheduler or a terminal asked for is no failure of the loader in which it struck."""
    start(f"{CONNECTED}\n{code}").end()
    bye = bye_of(exporter)
    assert (bye["outcome"], bye["category"], bye["message"]) == ("failed", *expected)


def test_sys_exit_is_as_it_was(exporter: Any, start: Start) -> None:
    """While it is hooked it looks and acts the same, also when it is called wrongly; then it is Python's own again."""
    process = start(
        """
        import inspect, pickle
        assert sys.exit.__name__ == "exit" and sys.exit.__module__ == "sys" and sys.exit.__doc__
        assert inspect.signature(sys.exit) == inspect.signature(sys.exit.__wrapped__)
        assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit
        for wrong in (lambda: sys.exit(1, 2), lambda: sys.exit(status=1)):
            try: wrong()
            except TypeError as error: assert "exit" in str(error)
        try: sys.exit((7, "x"))
        except SystemExit as error: assert error.args == (7, "x")
        again = Recorder(run="again")
        recorder.close()
        assert hasattr(sys.exit, "__wrapped__")
        again.close()
        assert type(sys.exit).__name__ == "builtin_function_or_method"
        third = Recorder(run="third")
        theirs = sys.exit
        sys.exit = lambda *given: theirs(*given)
        third.close()
        assert sys.exit.__name__ == "<lambda>"
        sys.exit(5)
        """
    )
    assert process.end() == (5, "")


class Odd(SystemExit):
    @property
    def code(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no code")


def test_the_end_by_an_exception_never_raises() -> None:
    """`recorder.close(error)` takes a SystemExit, too, and an exit code that cannot be read is one."""
    assert end_by(SystemExit(0)) == End("finished", at_exit=True)
    assert end_by(SystemExit(True)) == End("failed", "exit_code", "exit code 1", 1)
    assert end_by(SystemExit("")) == End("failed", "exit_code", "exit code 1", 1)
    assert end_by(SystemExit("x" * 9999)).message == "exit code 1: " + "x" * 499
    assert end_by(Odd()) == End("failed", "exit_code", "exit code unknown")
