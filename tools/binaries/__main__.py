"""`python -m tools.binaries [suite|victoria ...]`: fetch the programs of each and print their paths and versions."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tachograph_lab.binaries import SYSTEM, BinariesUnavailable, version
from tools.binaries.fetch import ensure


def main(suites: Sequence[str]) -> int:
    """Fetch the programs of each suite and print where they are."""
    for suite in suites or [SYSTEM]:
        try:
            for program, path in ensure(suite).items():
                print(f"{suite:10} {program:14} {'.'.join(map(str, version(path))):9} {path}")
        except BinariesUnavailable as error:
            print(f"{suite}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
