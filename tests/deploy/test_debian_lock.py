"""What the Debian package installs for Python 3.10, whose packages have other versions than those of the image."""

from __future__ import annotations

import re
from pathlib import Path

from tools.debian.environment import LOCK, LOCKS

ROOT = Path(__file__).parents[2]


def locked(path: str) -> dict[str, str]:
    """Return the versions of a lock by name; each has a hash."""
    blocks = re.findall(
        r"(?m)^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", (ROOT / path).read_text()
    )
    return {name: version for name, version, _ in blocks}


def test_it_has_what_the_image_has() -> None:
    """A dependency that was added or raised without `make lock` is missing there, or older than it need be."""
    image, own = locked(LOCK), locked(LOCKS["3.10"])
    assert set(own) - set(image) == {"async-timeout"}
    assert set(image) <= set(own)
    assert {name for name in image if image[name] != own[name]} == {"multidict", "platformdirs"}
    for path in (LOCK, LOCKS["3.10"]):
        assert len(locked(path)) == len(re.findall(r"(?m)^\S+==", (ROOT / path).read_text()))
