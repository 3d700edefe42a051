"""Exceptions that were raised while another one was handled, or because of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph.logs.reading import Reading, read
from tachograph.logs.sources import plan
from tachograph.logs.verdict import conclude

HANDLING = "During handling of the above exception, another exception occurred:"
CAUSE = "The above exception was the direct cause of the following exception:"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def chain(*parts: str, prefix: str = "") -> str:
    """Return tracebacks of exceptions, with the sentence between each two of them, after some steps."""
    head = ["Traceback (most recent call last):", '  File "/w/train.py", line 88, in main', "    run()"]
    lines = [f"step {n} loss 2.1" for n in range(12)]
    for part in parts:
        lines += [part, ""] if part in (HANDLING, CAUSE) else [*head, part, ""]
    return "".join(f"{prefix}{line}\n" for line in lines)


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
@pytest.mark.parametrize(
    ("parts", "category"),
    [
        (("ModuleNotFoundError: No module named 'apex'", HANDLING, OOM), "out_of_memory"),
        (("ModuleNotFoundError: No module named 'apex'", CAUSE, "RuntimeError: apex is needed"), "configuration"),
        ((OOM, HANDLING, "RuntimeError: cannot join current thread"), "out_of_memory"),
        (("_queue.Empty", CAUSE, "RuntimeError: DataLoader worker (pid(s) 88) exited unexpectedly"), "out_of_memory"),
        (("KeyError: 'jpg'", HANDLING, "PIL.UnidentifiedImageError: cannot identify image file '/d/81.jpg'"), "data"),
        (("AssertionError: loss is nan at step 20", HANDLING, "SystemExit: 1"), "numerical"),
    ],
)
def test_the_cause_of_a_chain(parts: tuple[str, ...], category: str, prefix: str, tmp_path: Path) -> None:
    """The first, unless it is a module that the program can do without, or a queue that had nothing for it."""
    path = tmp_path / "train.log"
    path.write_text(chain(*parts, prefix=prefix), encoding="utf-8")
    reading = Reading()
    read(plan([str(path)], reading.problems), reading, lambda _: None)
    verdict = conclude(reading)
    assert (verdict.state, verdict.roots[0].category) == ("cause", category)
