"""Flags, environment and YAML of the exporter: whatever is given, a configuration or a list of faults."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tachograph.node.config import SETTINGS, ConfigError, read_config

CORPUS = Path(__file__).parent / "corpus"
Given = tuple[list[str], Mapping[str, str], bytes | None]
"""Flags, environment, and a file's bytes where there is one."""


def check(given: Given, folder: Path) -> None:
    """A configuration or ConfigError, whose every fault is one line that says something; nothing else is raised."""
    flags, environment, content = given
    path = folder / "exporter.yaml"
    if content is not None:
        path.write_bytes(content)
        flags = [*flags, "--config", os.fspath(path)]
    faults: tuple[str, ...] = ("none",)
    try:
        with contextlib.suppress(SystemExit):  # argparse's own words: --help, or a value for a flag that takes none
            read_config(flags, environment)
    except ConfigError as error:
        faults = error.faults
    assert faults
    assert [fault for fault in faults if len(fault.split("\n")) > 1 or not fault.strip()] == []


names = st.sampled_from([setting.name for setting in SETTINGS])
texts = (
    st.sampled_from([
        "", " ", "0", "-1", "1", "256", "4096", "9" * 5000, "1e9", "1s", "10m", "999999h", "0.1s", "٣s", "nan", "inf",
        "-0", "0o666", "07777", "true", "Yes", "null", "~", ":10024", "127.0.0.1:0", "[::1]:1", "::1:1", ":65536",
        ":٣", "[:1", "a b:1", "/dev/null", "/", ".", "..", "info", "INFO", "x" * 5000, "\u2028", "\x1b", "訓", "a\nb",
        "\udcff", "{}", "[]", "*a", "&a", "!!python/object/apply:os.system [ls]", "%", "- 1", "1: 2", "--", "-", "@a",
    ])
    | st.text(max_size=20).map(lambda text: text.replace("\x00", ""))  # which no flag and no variable can hold
)  # fmt: skip
flags = (
    st.builds(lambda name, text: [f"--{name}={text}"], names, texts)
    | st.builds(lambda name, text: [f"--{name}", text], names, texts)
    | st.builds(lambda name: [f"--{name}"], names)
    | st.sampled_from([["--no-gpu"], ["--no-gpu=x"], ["--config"], ["--config", "/"], ["--config="], ["--"], ["-x"]])
    | texts.map(lambda text: [text])
    | texts.map(lambda text: [f"--config=/nowhere/{text}"])
)  # fmt: skip


def _nested(entries: list[tuple[str, str]]) -> bytes:
    """Return settings as YAML, each a mapping of its own: the same name may stand twice."""
    lines = []
    for name, text in entries:
        for depth, part in enumerate(parts := name.split(".")):
            lines.append("  " * depth + part + ":" + (f" {text}" if depth == len(parts) - 1 else ""))
    return "\n".join(lines).encode("utf-8", "surrogateescape")


files = (
    st.lists(st.tuples(names | texts, texts), max_size=6).map(_nested)
    | st.binary(max_size=60)
    | st.text("{}[]:,-&*!|>%@`'\"#?\n \tab01", max_size=60).map(str.encode)
    | st.sampled_from([
        b"[" * 20_000, b"{" * 20_000, b"a: " * 2000, b"&a [*a]", b"a: &a {b: *a}", b"\xff\xfe", b"---\n---\n", b"<<: 1",
    ])
)  # fmt: skip
environments = st.dictionaries(
    st.sampled_from(["TACHOGRAPH_SOCKET", "XDG_RUNTIME_DIR"]),
    texts,
    max_size=2,
)
given = st.tuples(
    st.lists(flags, max_size=5).map(lambda each: [word for words in each for word in words]),
    environments,
    st.none() | files,
)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("configuration-*.yaml")), ids=lambda path: path.stem)
def test_a_file_that_once_did_harm(path: Path, tmp_path: Path) -> None:
    """Inputs that once failed."""
    check(([], {}, path.read_bytes()), tmp_path)


def test_no_configuration_raises(fuzz: Callable[..., None], tmp_path: Path) -> None:
    """Whatever a user writes is a configuration, or every fault of it in a line each."""
    fuzz(lambda one: check(one, tmp_path), given, examples=75, share=0.1)
