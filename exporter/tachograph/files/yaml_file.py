"""A YAML file as nodes, which know their lines; for readers that name each fault with its line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import yaml


class YamlFileError(Exception):
    """A file is not UTF-8 or not YAML; the text has the file, the line where it is known, and why."""


def composed(path: Path) -> yaml.Node | None:
    """Return the root of a file, None if it is empty; raise OSError or YamlFileError."""
    import yaml  # only here: who reads no file does not pay for it

    try:
        return yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise YamlFileError(f"{path}: cannot be read: not UTF-8 at byte {error.start}") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else f"{path}"
        raise YamlFileError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from error
