"""Folders of logs that hide one cause: it is found, and no innocent rank is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tachograph.logs.verdict import LogVerdict
from tests.logs import folders, folders_of_nodes
from tests.logs.layouts import FOLDERS, Hidden, judged

assert folders, "importing them fills the table"
assert folders_of_nodes


def problems(verdict: LogVerdict, hidden: Hidden) -> Iterator[str]:
    """Yield what is not as it should be; where no rank can be known, none may be named."""
    first = verdict.findings[0] if verdict.findings else None
    if not hidden.category:
        if verdict.state != "no_cause" or tuple(verdict.silent) != hidden.silent:
            yield f"{verdict.state}, silent {verdict.silent}, {first and first.line}"
        return
    if first is None or verdict.state != "cause":
        yield f"{verdict.state}: {first and (first.name, first.line)}"
        return
    if first.category != hidden.category:
        yield f"{first.category} for {hidden.category}: {first.name}: {first.line}"
    if first.rank != hidden.rank:
        yield f"rank {first.rank} for {hidden.rank}: {first.file}: {first.line}"
    if hidden.node and first.node != hidden.node:
        yield f"node {first.node} for {hidden.node}"


@pytest.mark.parametrize("name", FOLDERS)
def test_the_hidden_cause_of_a_folder(name: str, tmp_path: Path) -> None:
    """It is named, with its rank or node; what was caught, what suffered and what only sums up are not."""
    made, hidden = FOLDERS[name]
    assert list(problems(judged(tmp_path, made()), hidden)) == []
