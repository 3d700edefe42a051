"""What a log shows of a value."""

from __future__ import annotations

import pytest

from tachograph.client.core.notice import SHOWN_LENGTH, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        ("two words", "'two words'"),
        (
            RuntimeError("CUDA error: an illegal memory access\nSearch for it"),
            "RuntimeError('CUDA error: an illegal memory access…",
        ),
        (ValueError("x" * 1000), "ValueError('" + "x" * (SHOWN_LENGTH - 12)),
        (object(), "<object>"),
    ],
)
def test_a_line_at_most(value: object, text: str) -> None:
    """PyTorch's errors have a manual behind the first line."""
    assert shown(value) == text
