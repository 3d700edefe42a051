"""The data file of Xids: the shipped one, and the error messages for a faulty one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.gpu import XID_ACTIONS
from tachograph.node.xid.xid_table import DATA, XidTableError, load
from tools.pages.xids import xids_page

HEADER = "# version 2026-11-21: made up\nxid,pages,action,meaning,source\n"


def test_what_pages() -> None:
    """Exactly the Xids on which the field agrees page; a program's own faults never do."""
    table = load()
    assert table.paging == (48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 144, 145, 146, 147, 148, 149, 150, 155, 158)
    for xid in (13, 31, 43, 45):
        row = table.of(xid)
        assert (row.number, row.pages) == (xid, False)
        assert row.action in {"application", "ignore"}
    assert all(table.of(xid).action in {"reset", "reboot", "return"} for xid in table.paging)


def test_an_unknown_xid_is_not_explained_away() -> None:
    """An Xid that is not in the table does not page, and is described as unknown instead of with advice."""
    table = load()
    row = table.of(9999)
    assert (row.pages, row.action) == (False, "unknown")
    assert table.version in row.meaning
    assert row.action in XID_ACTIONS


def test_meanings_fit_a_label() -> None:
    """A meaning is a short phrase, for it is a label value."""
    for row in load().rows.values():
        assert len(row.meaning) <= 90
        assert row.meaning.isprintable()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "expected \"# version"),
        ("xid,pages,action,meaning,source\n", 1, "expected \"# version"),
        ("# version yesterday: x\n", 1, "expected \"# version"),
        ("# version 2026-11-21: x\nxid,pages\n", 2, "expected the columns"),
        (HEADER, 2, "without a row"),
        (HEADER + "79,yes,reboot,gone,nvidia\n\n", 4, "expected 5 columns, found 0"),
        (HEADER + "79,yes,reboot,gone\n", 3, "expected 5 columns, found 4"),
        (HEADER + "# a comment\n79,yes,reboot,gone, away,nvidia\n", 4, "expected 5 columns, found 6"),
        (HEADER + "seven,yes,reboot,gone,nvidia\n", 3, "xid 'seven' is not a positive number"),
        (HEADER + "-79,yes,reboot,gone,nvidia\n", 3, "is not a positive number"),
        (HEADER + "79,1,reboot,gone,nvidia\n", 3, "pages '1' is neither yes nor no"),
        (HEADER + "79,yes,pray,gone,nvidia\n", 3, "action 'pray' is none of application, reset"),
        (HEADER + "79,yes,,gone,nvidia\n", 3, "action '' is none of"),
        (HEADER + "79,yes,reboot,,nvidia\n", 3, "must not be empty"),
        (HEADER + "79,yes,reboot,gone,\n", 3, "must not be empty"),
        (HEADER + "79,yes,reboot,gone,nvidia\n79,no,ignore,back,nvidia\n", 4, "Xid 79 is out of order or given twice"),
        (HEADER + '79,yes,reboot,"gone,nvidia\n', 3, "unexpected end of data"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_file_and_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    """A malformed data file is refused, and its place told."""
    path = tmp_path / "xids.csv"
    path.write_text(text)
    with pytest.raises(XidTableError, match=re.escape(f"{path}:{line}: ")) as raised:
        load(path)
    assert words in str(raised.value)


def test_a_quoted_meaning_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    """The file may come from a spreadsheet."""
    path = tmp_path / "xids.csv"
    path.write_bytes((HEADER + '79,yes,reboot,"gone, for good",nvidia\n').replace("\n", "\r\n").encode())
    assert load(path).of(79).meaning == "gone, for good"


def test_the_page_has_every_xid_once() -> None:
    """Each row of the data file is in one line under its action, in bold if it pages."""
    table = load()
    listed = [
        (int(number), bool(bold), section.split("`")[0])
        for section in xids_page().split("\n## `")[1:]
        for bold, numbers in re.findall(r"^- (\**)([\d, –]+)", section, re.MULTILINE)
        for first, last in re.findall(r"(\d+)(?:–(\d+))?", numbers)
        for number in range(int(first), int(last or first) + 1)
    ]
    assert sorted(listed) == [(number, row.pages, row.action) for number, row in sorted(table.rows.items())]
    assert DATA.name in xids_page()


def test_the_rules_page_on_the_same_xids(rules: list[dict[str, Any]]) -> None:
    """Where a rule names the Xids that page, it names those of the data file."""
    found = {
        match for rule in rules for match in re.findall(r'xid=~"([0-9|]+)"', rule["expr"]) if "79" in match.split("|")
    }
    assert found == {"|".join(map(str, load().paging))}
