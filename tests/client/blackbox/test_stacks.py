"""The stacks in a box: every thread's lines, no values, no secrets, bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tachograph.client.blackbox.stacks import MAX_FRAMES, MAX_NAMES, is_compiling, stacks

Stand = Callable[..., threading.Thread]


@pytest.fixture
def stand() -> Iterator[Stand]:
    """Starts threads that stand in a function of a file of a name, at a depth."""
    leave, threads = threading.Event(), []

    def begin(file: str = "/home/alice/train.py", function: str = "load", depth: int = 0) -> threading.Thread:
        source = f"def {function}(depth, token):\n    return {function}(depth - 1, token) if depth else wait()\n"
        names: dict[str, Callable[[int, str], object]] = {}
        entered = threading.Event()

        def wait() -> None:
            entered.set()
            leave.wait()

        exec(compile(source, file, "exec"), {"wait": wait}, names)
        scope = names[function].__globals__
        scope[function] = names[function]
        thread = threading.Thread(target=names[function], args=(depth, "hunter2"), daemon=True)
        thread.start()
        threads.append(thread)
        assert entered.wait(30)
        return thread

    yield begin
    leave.set()
    for thread in threads:
        thread.join(30)


def of(found: list[dict[str, object]], name: str) -> list[str]:
    return next(each["lines"] for each in found if name in each["threads"])  # type: ignore[misc, operator]


def test_every_thread_but_the_own_stands_in_it(stand: Stand) -> None:
    """With its name, innermost line first; the training thread comes first. Names of functions, and no values."""
    thread = stand(depth=2)
    found = stacks(thread.ident or 0)
    assert found[0]["threads"] == [thread.name]
    lines = of(found, thread.name)
    first = lines.index("/home/alice/train.py:2 load")
    assert lines[first : first + 3] == ["/home/alice/train.py:2 load"] * 3
    assert lines[first - 1].endswith(" wait")
    assert threading.current_thread().name not in str(found)
    assert "hunter2" not in str(found)


def test_a_secret_in_a_path_is_not_shown(stand: Stand) -> None:
    """What looks like a key in the name of a file is redacted."""
    thread = stand(file="/runs/hf_aBcDeFgHiJkLmNoP/train.py")
    assert "/runs/[redacted]/train.py:2 load" in str(stacks(thread.ident or 0))
    assert "hf_aBc" not in str(stacks(0))


def test_threads_at_the_same_lines_share_a_stack(stand: Stand) -> None:
    """Two hundred of a pool are one stack, with the first names and how many more there are."""
    for _ in range(MAX_NAMES + 6):
        stand()
    (shared,) = [each for each in stacks(0) if "train.py" in str(each)]
    assert (len(shared["threads"]), shared["more_threads"]) == (MAX_NAMES, 6)  # type: ignore[arg-type]


def test_a_deep_stack_is_cut_at_its_outer_end(stand: Stand) -> None:
    """The innermost lines are kept."""
    thread = stand(depth=300)
    lines = of(stacks(0), thread.name)
    assert len(lines) == MAX_FRAMES + 1
    assert lines[-1] == "…"
    assert lines[-2] == "/home/alice/train.py:2 load"


@pytest.mark.parametrize(
    ("file", "function", "compiles"),
    [
        ("torch/_dynamo/convert_frame.py", "_compile", True),
        ("torch/_inductor/compile_fx.py", "fx_codegen_and_compile", True),
        ("torch/_inductor/compile_fx.py", "run", False),
        ("torch/_dynamo/eval_frame.py", "compile_wrapper", False),
        ("triton/compiler/compiler.py", "compile", True),
        ("train.py", "compile", False),
    ],
)
def test_a_compiler_is_known_by_its_functions(stand: Stand, file: str, function: str, compiles: bool) -> None:
    """Those on the stack while it works, not those through which compiled code is called."""
    thread = stand(f"{Path('/usr/lib/python3/dist-packages') / file}", function)
    assert is_compiling(thread.ident or 0) is compiles
    assert is_compiling(0) is False


@pytest.mark.parametrize(
    ("file", "compiles"), [("torch/_inductor/ops_handler.py", True), ("torch/optim/adam.py", False)]
)
def test_the_first_compilation_imports_its_compiler(file: str, compiles: bool) -> None:
    """That is part of it, and takes seconds in a step."""
    seen: list[bool] = []
    module = compile("seen.append(is_compiling(thread))", f"/usr/lib/python3/dist-packages/{file}", "exec")
    exec(module, {"seen": seen, "is_compiling": is_compiling, "thread": threading.get_ident()})
    assert seen == [compiles]
