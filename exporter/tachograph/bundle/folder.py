"""The folder of a bundle: what an earlier one wrote there, what a new one changes, and what is a person's own."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

WRITTEN = ".bundle"
"""The list of a bundle's files with their hashes, by which the next one knows the obsolete and the edited ones."""
OWN = "targets/"
"""Files in it are examples: the first bundle writes them, and from then on they are a site's own."""
KEPT = ".yours"
"""The ending of the copy of a file that was edited after it had been written."""


def write(out: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files and remove those of an earlier bundle that are no longer part of it; raise OSError.

    A site's own files stay as they are. Return the files that were edited by hand, whose contents are kept in copies.
    """
    earlier, edited = _earlier(out), []

    def keep_edited(name: str, becomes: str) -> None:
        path = out / name
        if earlier.get(name) and path.is_file():
            before = path.read_bytes()
            if _hash(before) != earlier[name] and before != becomes.encode():
                path.with_name(path.name + KEPT).write_bytes(before)
                edited.append(name)

    for name in _obsolete(out, earlier, files):
        keep_edited(name, "")
        (out / name).unlink()
    for name, text in files.items():
        path = out / name
        if name.startswith(OWN) and path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        keep_edited(name, text)
        path.write_text(text, encoding="utf-8")
    listed = "".join(f"{_hash(text.encode())}  {name}\n" for name, text in files.items())
    (out / WRITTEN).write_text(listed, encoding="utf-8")
    return edited


def changes(out: Path, files: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of what `write` would change, as `diff --unified` prints them; raise OSError."""
    for name in _obsolete(out, _earlier(out), files):
        yield from _diff(name, _text(out / name), "")
    for name, text in files.items():
        path = out / name
        before = _text(path) if path.is_file() else ""
        if before != text and not (name.startswith(OWN) and path.exists()):
            yield from _diff(name, before, text)


def _diff(name: str, before: str, after: str) -> Iterator[str]:
    old, new = name if before else "/dev/null", name if after else "/dev/null"
    yield from difflib.unified_diff(before.splitlines(), after.splitlines(), old, new, lineterm="")


def _obsolete(out: Path, earlier: Mapping[str, str], files: Mapping[str, str]) -> list[str]:
    """Return the files of an earlier bundle that a new one lacks; never one outside of the folder."""
    root = out.resolve()
    gone = (name for name in sorted(earlier) if name not in files and not name.startswith(OWN))
    return [name for name in gone if (out / name).is_file() and (out / name).resolve().is_relative_to(root)]


def _earlier(out: Path) -> dict[str, str]:
    """Return the files of an earlier bundle with their hashes, "" where a bundle of an older version wrote them."""
    listed = out / WRITTEN
    if not listed.is_file():
        return {}
    found = {}
    for line in listed.read_text(encoding="utf-8", errors="replace").splitlines():
        hashed, gap, name = line.partition("  ")
        found[name if gap else line] = hashed if gap else ""
    return found


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
