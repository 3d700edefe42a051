"""Closed vocabularies: each word that an interface can say is known, in the line in which it is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tachograph.signatures.codes import CodeError, codes_of_rows, has_word
from tachograph.signatures.table import SignatureError, classify, parse, table
from tests.every import every
from tests.signatures.test_table import ROW

VOCABULARIES = yaml.load(Path(__file__).with_name("vocabularies.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)


@every("vocabulary", VOCABULARIES)
def test_a_closed_vocabulary(vocabulary: dict[str, object]) -> None:
    """Each word of it has the category and the role that it is listed under."""
    said = vocabulary["said"]
    assert isinstance(said, dict)
    wrong = []
    for label, words in said.items():
        for word in words:
            row = classify(str(vocabulary["as"]).replace("{}", str(word)), failed=True)
            if row is None or f"{row.category} {row.role}" != label:
                wrong.append((word, label, row and row.name))
    assert wrong == []


PLAIN = """\
version: 2026-01-01
signatures:
- {name: one, category: network, role: ROLE, example: it is gone, find: [gone], cause: It is gone., next: []}
- {name: two, category: storage, role: root, example: E_GONE_AWAY, find: [away], cause: It is gone., next: []}
"""


@pytest.mark.parametrize(("role", "row"), [("root", "two"), ("cascade", "one")])
def test_a_word_is_preferred_to_the_pattern_of_another_root(role: str, row: str) -> None:
    """And not to what those say who suffer."""
    example = "it is gone" if role == "cascade" else "gone"
    made = parse(PLAIN.replace("ROLE", role).replace("E_GONE_AWAY", "away"), "{v: {as: ['{}'], two: [E_GONE]}}")
    found = [made.classify(line) for line in (example, "gone: E_GONE", "gone: E_GONE_TOO")]
    assert [one and one.name for one in found] == ["one", row, "one"]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("e_gone", True),
        ("(e_gone)", True),
        ("it is e_gone.", True),
        ("e_gone_too", False),
        ("the_gone e_goner", False),
        ("e_goner e_gone", True),
    ],
)
def test_a_word_is_whole(text: str, known: bool) -> None:
    """A part of a longer word is another one."""
    assert has_word(("e_gone",), text) is known


def test_forms_hold_the_word() -> None:
    """In small letters, and in each form."""
    assert codes_of_rows({"v": {"as": ["({})", "code: {}"], "one": ["SlowDown"]}}) == {
        "one": ("(slowdown)", "code: slowdown")
    }


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ("[]", "expected vocabularies by their names"),
        ("{v: {one: [X]}}", "v: expected rows, and `as`"),
        ("{v: {as: [X], one: [X]}}", "v: each form in `as` needs {} for the word"),
        ("{v: {as: ['{}'], one: X}}", "v: one: expected a list of texts"),
        ("{v: {as: ['{}'], one: [X]}, w: {as: ['{}'], two: [x]}}", "'x' is of one and of two"),
        ("{v: {as: ['{}'], three: [X]}}", "codes: no row three"),
        ("{v: [", "not YAML"),
    ],
)
def test_vocabularies_that_are_not_valid(codes: str, said: str) -> None:
    """They are refused with the name of the vocabulary and what was expected."""
    with pytest.raises(SignatureError) as error:
        parse(ROW, codes)
    assert said in str(error.value)


def test_codes_are_refused_as_such() -> None:
    """Whoever reads them alone is told so, too."""
    with pytest.raises(CodeError):
        codes_of_rows("no mapping")


def test_each_word_leads_to_its_row() -> None:
    """A line with it is read by `logs`, and of its row or of one that stands before it."""
    made = table()
    for number, row in enumerate(made.rows):
        assert not [
            word for word in row.codes if not any(text in word and number in made.by_text[text] for text in row.texts)
        ]
