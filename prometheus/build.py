"""Write the rules: `python prometheus/build.py` makes rules/<subject>.yml from src/<subject>.yml.

The flags set parameters for rules of your own, which `--output` writes elsewhere.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from tachograph.bundle import rules

HERE = Path(__file__).parent


def main(arguments: list[str] | None = None) -> int:
    """Write every rule file; return the exit status."""
    parser = argparse.ArgumentParser(prog="prometheus/build.py", description=(__doc__ or "").split("\n\n")[0])
    for name, value in rules.parameters().items():
        kind = functools.partial(rules.parameter, name)
        parser.add_argument(f"--{name.replace('_', '-')}", default=value, type=kind, help=f"default: {value}")
    parser.add_argument("--output", type=Path, default=HERE / "rules", metavar="DIR", help="default: prometheus/rules")
    values = vars(parser.parse_args(arguments))
    output: Path = values.pop("output")
    try:
        texts = rules.all_rendered(values)
    except rules.RuleSourceError as error:
        print(error, file=sys.stderr)
        return 1
    output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
