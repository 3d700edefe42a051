"""Finds the files of the viewer and the dashboards: in the wheel, else in a checkout."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tachograph import extras
from tachograph.files import shipped

INSTALLED = Path(__file__).parent / "viewer"
CHECKOUT = Path(__file__).parents[3] / "grafana"


class BundleError(Exception):
    """No viewer was found; the text says what to do."""


@dataclass(frozen=True)
class Bundle:
    """The built viewer, and the directory of the dashboards that it shows."""

    viewer: Path
    dashboards: Path

    @cached_property
    def files(self) -> frozenset[str]:
        """Return the paths that may be served, as in a URL: no file outside the viewer has one."""
        return frozenset(path.relative_to(self.viewer).as_posix() for path in self.viewer.rglob("*") if path.is_file())

    def by_uid(self) -> dict[str, Path]:
        """Return the files of the dashboards by uid, read on each call: in a checkout they may change at any time."""
        found = {}
        for path in sorted(self.dashboards.glob("*.json")):
            found[str(json.loads(path.read_text(encoding="utf-8"))["uid"])] = path
        return found

    def entries(self) -> list[dict[str, object]]:
        """Return the entries of the list of dashboards."""
        every = [json.loads(path.read_text(encoding="utf-8")) for path in self.by_uid().values()]
        return [{key: one.get(key, "") for key in ("uid", "title", "description", "tags")} for one in every]


def find(installed: Path = INSTALLED, checkouts: Sequence[Path] | None = None) -> Bundle:
    """Return the viewer of the wheel, else of the checkout: this one, or that from which pip has installed this.

    Raises BundleError with the command that makes one.
    """
    if (installed / "index.html").is_file():
        return Bundle(installed, shipped.folder() / "grafana/dashboards")
    if checkouts is None:
        noted = extras.checkout()
        checkouts = (CHECKOUT, *([noted / "grafana"] if noted is not None else []))
    for checkout in checkouts:
        if (checkout / "preview/out/index.html").is_file():
            return Bundle(checkout / "preview/out", checkout / "dashboards")
    for checkout in checkouts:
        if (checkout / "preview").is_dir():
            folder = shlex.quote(str(checkout.parent))
            raise BundleError(f"the viewer is not built: make -C {folder} preview builds it, once, in a few minutes")
    raise BundleError(
        "this installation has no viewer: "
        f"git clone {extras.repository()} src && make -C src wheel && pip install src/dist/*.whl"
    )
