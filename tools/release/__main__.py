"""`python -m tools.release [--tag]`: check, build and compare a release, and tag it if asked; `make release`."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Sequence

from tachograph_lab.checkout import root
from tools.release.artefacts import build
from tools.release.programs import BuildError
from tools.release.state import faults, git, head


def main(arguments: Sequence[str]) -> int:
    """Release the checked-out commit; return the exit status."""
    parser = argparse.ArgumentParser(prog="make release", description="Check, build and compare a release.")
    parser.add_argument("--tag", action="store_true", help="tag the commit, too; nothing is pushed or uploaded")
    tag = parser.parse_args(arguments).tag
    commit = head(root())
    found = list(faults(root(), commit))
    if tag and not shutil.which("npm"):
        found.append("no Node.js: the wheel would lack the viewer of `tachograph dashboards`")
    if found:
        print(f"{commit.version} cannot be released:", *found, sep="\n  ", file=sys.stderr)
        return 1
    print(f"Tachograph {commit.version}, commit {commit.sha[:12]}, built twice; a minute or two")
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
    print("The two builds are equal.")
    if tag:
        git(root(), "tag", "--annotate", "--message", f"Tachograph {commit.version}", commit.tag, commit.sha)
        print(f"Tagged {commit.tag}; nothing is published yet:")
    else:
        print(f"Dry run; `make release TAG=1` tags {commit.tag}, and then follow:")
    image = f"registry.example.com/tachograph:{commit.version}"
    print(
        f"  git push origin {commit.tag}",
        f"  twine upload dist/tachograph-{commit.version}*.whl dist/tachograph-{commit.version}.tar.gz",
        f"  git archive {commit.tag} | docker build --file exporter/Dockerfile --tag {image} -",
        f"  docker push {image}",
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
