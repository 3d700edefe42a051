"""`python -m tools.release [--tag]`: check, build and compare a release, and tag it if asked; `make release`."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence

from tachograph.text.humanize import span
from tachograph_lab.checkout import root
from tools.commit import git, head
from tools.programs import BuildError
from tools.release.artefacts import build, left_out
from tools.release.state import faults


def main(arguments: Sequence[str]) -> int:
    """Release the checked-out commit; return the exit status."""
    parser = argparse.ArgumentParser(prog="make release", description="Check, build and compare a release.")
    parser.add_argument("--tag", action="store_true", help="tag the commit, too; nothing is pushed or uploaded")
    tag = parser.parse_args(arguments).tag
    try:
        commit = head(root())
        found, lacking = list(faults(root(), commit)), left_out(root())
    except BuildError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    if tag:
        found += lacking
    if found:
        print(f"{commit.version} cannot be released:", *found, sep="\n  ", file=sys.stderr)
        return 1
    print(f"Tachograph {commit.version}, commit {commit.sha[:12]}, built twice; a few minutes")
    print(*(f"Left out: {text}" for text in lacking), sep="\n", end="\n" * bool(lacking), flush=True)
    began = time.monotonic()
    try:
        files = build(root(), commit)
    except BuildError as error:
        print(f"{commit.version} cannot be released: {error}", file=sys.stderr)
        return 1
    target = root() / "dist"
    target.mkdir(exist_ok=True)
    for name, content in sorted(files.items()):
        (target / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  dist/{name}  {len(content) / 1e6:.2f} MB")
    print(f"The two builds are equal; they took {span(time.monotonic() - began)}.")
    if tag:
        try:
            git(root(), "tag", "--annotate", "--message", f"Tachograph {commit.version}", commit.tag, commit.sha)
        except BuildError as error:
            print(f"{commit.version} is built, but not tagged: {error}", file=sys.stderr)
            return 1
        print(f"Tagged {commit.tag}; nothing is published yet:")
    else:
        print(f"Dry run; `make release TAG=1` tags {commit.tag}, and then follow:")
    name, image = f"dist/tachograph-{commit.version}", f"registry.example.com/tachograph:{commit.version}"
    print(
        f"  git push origin {commit.tag}",
        f"  twine upload {name}-*.whl {name}.tar.gz",
        f"  docker build --file exporter/Dockerfile --tag {image} - <{name}-image.tar.gz",
        f"  docker push {image}",
        f"  helm push {name}.tgz oci://registry.example.com/charts",
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
