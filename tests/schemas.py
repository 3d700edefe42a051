"""Whether JSON that a command or an exporter gives is as its schema in docs/schemas/ says."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).parents[1] / "docs/schemas"


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return what checks values by a schema."""
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8")))


def conforms(name: str, text: str | bytes) -> Any:
    """Return the value of a JSON text; fail where it is none, or its schema does not allow it."""
    value = json.loads(text, parse_constant=_no_constant)
    fault = jsonschema.exceptions.best_match(validator(name).iter_errors(value))
    assert fault is None, f"docs/schemas/{name}.json: {fault.json_path if fault else ''}: {fault and fault.message}"
    return value


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")
