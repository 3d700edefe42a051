"""The picture of sketches: where every step gathered becomes larger than one, and that each has its line."""

from __future__ import annotations

import importlib
from types import ModuleType
from xml.etree import ElementTree

import pytest


@pytest.fixture(scope="module")
def sketch_plot() -> ModuleType:
    return importlib.import_module("sketch_plot")


GATHERED = [(float(steps), 8.0 * steps) for steps in (1, 4, 16, 64, 256)]


@pytest.mark.parametrize(("size", "steps"), [(8.0, 1.0), (40.0, 5.0), (128.0, 16.0), (1600.0, 200.0)])
def test_a_sketch_of_constant_size_is_crossed_where_as_many_steps_take_as_much(
    sketch_plot: ModuleType, size: float, steps: float
) -> None:
    """Also between two sizes, and where they are the same at one."""
    assert sketch_plot.crossing(GATHERED, [(count, size) for count, _ in GATHERED]) == pytest.approx(steps)


def test_lines_that_do_not_cross(sketch_plot: ModuleType) -> None:
    """One that is always larger, and one that is always smaller, have no crossing; nor has a line with itself."""
    assert sketch_plot.crossing(GATHERED, [(count, 9 * count) for count, _ in GATHERED]) is None
    assert sketch_plot.crossing(GATHERED, [(count, 7 * count) for count, _ in GATHERED]) is None
    assert sketch_plot.crossing(GATHERED, GATHERED) is None


def test_the_picture_has_each_line_and_each_crossing(sketch_plot: ModuleType) -> None:
    """It is well-formed; each line is named, and has a dot if it is crossed."""
    lines = {"every step gathered": GATHERED, "a < b": [(count, 40.0) for count, _ in GATHERED]}
    root = ElementTree.fromstring(sketch_plot.plot(lines))
    space = "{http://www.w3.org/2000/svg}"
    assert {each.text for each in root.iter(f"{space}text")} >= lines.keys()
    assert len(list(root.iter(f"{space}circle"))) == 1
