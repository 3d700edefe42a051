"""One test for many rows of a table, of which each would be tried in less time than pytest takes for a test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

Test = Callable[..., None]


def every(names: str, rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Have a test try each row, as `parametrize` does, but in one go; it fails with what each faulty row says.

    `names` are the test's parameters that a row fills, separated by commas. All rows share the test's fixtures.
    """
    keys, all_rows = names.split(","), list(rows)

    def decorate(test: Test) -> Test:
        @wraps(test)
        def of_all(**fixtures: Any) -> None:
            assert all_rows, "no rows"
            faults = []
            for row in all_rows:
                try:
                    test(**fixtures, **dict(zip(keys, row if len(keys) > 1 else [row], strict=True)))
                except Exception as error:  # noqa: BLE001 - the rows after it are tried, too
                    faults.append(f"{row!r}: {type(error).__name__}: {error}")
            assert not faults, "\n".join([f"{len(faults)} of {len(all_rows)}", *faults])

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in keys]
        of_all.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return of_all

    return decorate
