"""`python -m tools.debian`: build the Debian package into dist/; `make deb`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tachograph_lab.checkout import root
from tools.commit import head
from tools.debian import package
from tools.programs import BuildError


def main(arguments: Sequence[str]) -> int:
    """Build the package of the checked-out files; return the exit status."""
    parser = argparse.ArgumentParser(prog="make deb", description="Build the Debian package.")
    parser.add_argument("--out", type=Path, default=root() / "dist", help="folder of the package (dist)")
    try:
        built = package.build(root(), head(root()), parser.parse_args(arguments).out)
    except BuildError as error:
        print(f"make deb: {error}", file=sys.stderr)
        return 1
    print(f"{built} {built.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
