"""A YAML file as nodes, which know their lines; for readers that name each fault with its line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.files.plain_file import read_plain

if TYPE_CHECKING:
    import yaml

MOST_BYTES = 16 << 20
"""A file of 100,000 nodes has 3 MB; a device has no end."""


class YamlFileError(Exception):
    """A file is not UTF-8 or not YAML; the text has the file, the line where it is known, and why."""


def composed(path: Path) -> yaml.Node | None:
    """Return the root of a plain file, None if it is empty; raise OSError or YamlFileError."""
    import yaml  # only here: who reads no file does not pay for it

    body = read_plain(path, MOST_BYTES)
    try:
        text = body.decode()
        loader = yaml.SafeLoader(text)
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise YamlFileError(f"{path}:{line}: cannot be read: not UTF-8 at byte {error.start}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlFileError(f"{path}:{line}: not YAML: it has the character U+{error.character:04X}") from error
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = loader.line if error.problem_mark is None else error.problem_mark.line
        raise YamlFileError(f"{path}:{line + 1}: not YAML: {error.problem or error}") from error
    except RecursionError as error:
        raise YamlFileError(f"{path}:{loader.line + 1}: lists and mappings are nested too deeply") from error
    except (ValueError, OverflowError) as error:  # a character or a version beyond what Python has
        raise YamlFileError(f"{path}:{loader.line + 1}: not YAML: {error}") from error
