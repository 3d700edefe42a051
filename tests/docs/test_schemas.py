"""docs/schemas/: one schema for each command with --json and each page of JSON, and each is as the code has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest

from tachograph import diagnosis
from tachograph.bisect.nodes import WHYS
from tachograph.blackbox import findings, mismatch
from tachograph.blackbox.served import RAS_KINDS
from tachograph.blackbox.served import VERSION as INDEX_VERSION
from tachograph.catalog import index as catalog
from tachograph.command_line import JSON_VERSION
from tachograph.compare.measures import MEASURES
from tachograph.doctor.command import WORDS
from tachograph.findings.kinds import KINDS, SEVERITIES
from tachograph.history.recorded import EVENTS
from tachograph.node.api.answer import VERSION as NODE_VERSION
from tachograph.preflight.command import CHECKS
from tachograph.signatures.table import CATEGORIES, ROLES
from tachograph.top.overview import CONDITIONS, WEIGHTS
from tachograph.triage.modes import MODES
from tests.schemas import SCHEMAS, conforms, validator
from tools.debian.help_texts import helps

TESTS = SCHEMAS.parents[1] / "tests"
PAGES = {"api-node": NODE_VERSION, "api-blackbox": INDEX_VERSION}
"""What an exporter serves, and its version."""

NAMES = sorted(path.stem for path in SCHEMAS.glob("*.json"))
RANK_STATES = set(diagnosis.STATES) - {"hung", "overdue"}
CULPRITS = {
    *(findings.HOST, findings.GPU, findings.NO_DUMP, findings.SLOW, findings.FAILED),
    *(mismatch.SKIPPED, mismatch.ORDER, mismatch.EXTRA, mismatch.TYPE, mismatch.SIZE, mismatch.DTYPE),
}
TRIAGED = {kind.category for kind in KINDS} | set(CATEGORIES) | {"none"}


def test_every_command_with_json_has_a_schema() -> None:
    """Its own help says whether it has; a schema of nothing is none."""
    commands = {one.name.replace(" ", "-") for one in helps() if "--json" in one.options()}
    assert len(commands) > 10
    assert set(NAMES) == commands | set(PAGES)


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one(name: str) -> None:
    """Of draft 2020-12, with an address, a version, and a word on each object's every key."""
    schema = validator(name).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].endswith(f"/docs/schemas/{name}.json")
    wholes = [schema["$defs"][one["$ref"].rpartition("/")[2]] for one in schema.get("oneOf", ()) if "$ref" in one]
    for whole in wholes or [schema]:
        assert whole["properties"]["version"] == {"const": PAGES.get(name, JSON_VERSION)}
        assert "version" in whole["required"]


@pytest.mark.parametrize("name", NAMES)
def test_an_object_is_closed(name: str) -> None:
    """Its keys are all listed, or what any key means is said; a key that is not always there is one of few."""
    optional = set()
    for part in parts(validator(name).schema):
        if "properties" in part and "title" not in part:
            assert part["additionalProperties"] is False or "name" in part["properties"], part
        optional |= set(part.get("properties", ())) - set(part.get("required", ()))
    assert optional <= {"fix"} | ({"kind"} if name == "bisect" else set())


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema within one."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from parts(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from parts(value)


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_tried_on_real_output(name: str) -> None:
    """By a test that runs the command, or asks an exporter."""
    tried = re.compile(rf'conforms\(\s*"{name}"')
    assert any(tried.search(path.read_text(encoding="utf-8")) for path in TESTS.rglob("test_*.py"))


@pytest.mark.parametrize(
    ("name", "path", "values"),
    [
        ("top", ("run", "state"), CONDITIONS),
        ("top", ("rank", "state"), {*RANK_STATES, ""}),
        ("top", ("rank", "marks"), set(WEIGHTS) - RANK_STATES),
        ("api-node", ("run", "state"), diagnosis.STATES),
        ("api-node", ("rank", "state"), RANK_STATES),
        ("api-node", ("gpu", "held"), catalog.CLOCK_EVENT_REASONS),
        ("api-blackbox", ("ras",), {*RAS_KINDS, ""}),
        ("blackbox-analyze", ("culprits", "kind"), CULPRITS),
        ("bisect", ("why",), WHYS),
        ("compare", ("measures", "name"), [one.name for one in MEASURES]),
        ("doctor", ("checks", "verdict"), WORDS.values()),
        ("history", ("precedes", "event"), EVENTS),
        ("logs", ("$defs", "category"), {*CATEGORIES, "unknown"}),
        ("logs", ("$defs", "role"), {*ROLES, "unknown"}),
        ("preflight", ("$defs", "check"), {"ranks", *(one.name for one in CHECKS)}),
        ("triage", ("finding", "severity"), {*SEVERITIES.values(), "none"}),
        ("triage", ("finding", "category"), TRIAGED),
        ("triage", ("finding", "mode"), MODES),
    ],
)
def test_values_are_those_of_the_code(name: str, path: Sequence[str], values: Any) -> None:
    """A kind, state or category that is added is added in both places."""
    assert set(found_at(validator(name).schema, path)) == set(values)


def found_at(schema: Any, path: Sequence[str]) -> list[str]:
    """Return the values that are allowed at a path of names, however deep each lies below the one before it."""
    for name in path:
        (schema, *_) = [each[name] for each in parts(schema) if isinstance(each.get(name), dict)]
    return next(part["enum"] for part in parts(schema) if "enum" in part)


def test_what_a_schema_does_not_have_is_refused() -> None:
    """The test itself: a key too many, one too few, another type, another version, a word that is no JSON."""
    right = {"version": 1, "checks": [{"verdict": "right", "what": "a", "then": ""}]}
    assert conforms("doctor", json.dumps(right)) == right
    (check,) = right["checks"]  # type: ignore[misc]
    for wrong in (
        {**right, "more": 1},
        {"version": 1},
        {**right, "version": 2},
        {**right, "checks": [{**check, "verdict": "good"}]},
        {**right, "checks": [{**check, "what": None}]},
        {**right, "checks": [{"verdict": "right", "what": "a"}]},
    ):
        with pytest.raises(AssertionError, match=r"docs/schemas/doctor\.json"):
            conforms("doctor", json.dumps(wrong))
    with pytest.raises(AssertionError, match="NaN is no JSON"):
        conforms("doctor", '{"version": NaN}')
