"""Manual pages and completions of the Debian package: made of the help texts, and read by the real programs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tachograph.__main__ import COMMANDS
from tools.debian import completion, manual
from tools.debian.help_texts import Help, helps, parsed


@pytest.fixture(scope="module")
def found() -> Sequence[Help]:
    """The help of every command."""
    return list(helps())


def test_a_help_text_is_taken_apart() -> None:
    """Into usage, paragraphs, and entries with what is said of them, wherever that begins."""
    text = """\
usage: tachograph x [-h]
       tachograph x -m MODULE

Does it. Twice:
in two lines.

options:
  -h, --help  show this
  --long-name OF A VALUE
              said on the next line
  --name N    the first line
              (and more)
  --flag

exit status:
  0  done

See elsewhere.
"""
    made = parsed("x", "does it", text)
    assert made.usage == ["tachograph x [-h]", "tachograph x -m MODULE"]
    assert [section.title for section in made.sections] == ["", "options", "exit status", ""]
    assert made.sections[0].entries == [("", "Does it. Twice: in two lines.")]
    assert made.options() == {
        "--help": (False, "show this"),
        "--long-name": (True, "said on the next line"),
        "--name": (True, "the first line (and more)"),
        "--flag": (False, ""),
    }
    assert made.sections[2].entries == [("0", "done")]


def test_only_commands_are_taken_for_commands() -> None:
    """Not the choices of an argument, nor an argument with a small name."""
    listed = "\n\npositional arguments:\n  COMMAND\n    get  gets it\n  {a,b}  one of them\n"
    assert parsed("x", "does it", "usage: tachograph x [-h] {a,b} kind" + listed).commands() == {}
    assert "get" in parsed("x", "does it", "usage: tachograph x [-h] COMMAND ..." + listed).commands()


def test_every_command_and_option_has_its_place(found: Sequence[Help]) -> None:
    """In a page and in each completion."""
    assert {one.name for one in found if " " not in one.name} == set(COMMANDS)
    pages = manual.pages(found, "1.2", 0)
    texts = [script.decode() for script in completion.scripts(found).values()]
    for one in found:
        page = pages[f"{manual.FOLDER}/tachograph-{one.name.replace(' ', '-')}.1.gz"].decode()
        assert one.options(), one.name
        for option in one.options():
            assert manual.escaped(option) in page
            for text in texts:
                assert option in text or f"-l {option[2:]}" in text, (one.name, option)
    overview = pages[f"{manual.FOLDER}/tachograph.1.gz"].decode()
    assert all(rf"tachograph\-{name}" in overview for name in COMMANDS)


def test_troff_prints_what_is_written() -> None:
    """A line that begins with a dot or a quote is no request, and a hyphen can be copied."""
    assert manual.escaped(".5 s") == r"\&.5 s"
    assert manual.escaped("'x' a-b \\") == r"\(aqx\(aq a\-b \e"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_has_nothing_to_say(found: Sequence[Help]) -> None:
    """About any page, with all its warnings on; the text of the help arrives."""
    for path, page in manual.pages(found, "1.2", 0).items():
        done = run("groff", "-Kutf8", "-man", "-Tutf8", "-P-cbou", "-ww", given=page.decode())
        assert done.stderr == "", path
        printed = re.sub(r".\x08", "", done.stdout)  # bold is a letter over itself
        assert "NAME" in printed
        assert "COMMANDS" in printed or "SYNOPSIS" in printed


def run(*command: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["do"], {"doctor"}),
        (["--v"], {"--version"}),
        (["top", "--pro"], {"--prometheus"}),
        (["blackbox", "an"], {"analyze"}),
        (["blackbox", "analyze", "--w"], {"--world-size"}),
        (["exporter", "--web.c"], {"--web.config.file"}),
        (["run", "train.p"], set()),
    ],
)
def test_bash_completes(found: Sequence[Help], tmp_path: Path, words: list[str], offered: set[str]) -> None:
    """Commands, the commands below them, options; and nothing of ours where a file is wanted."""
    script = tmp_path / "tachograph"
    script.write_bytes(completion.scripts(found)[completion.BASH])
    line = " ".join(f"'{word}'" for word in ["tachograph", *words])
    asked = f'. {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _tachograph; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = run("bash", "--norc", "-c", asked)
    assert (done.stderr, set(done.stdout.split())) == ("", offered)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(found: Sequence[Help], tmp_path: Path) -> None:
    """With what is said of each."""
    script = tmp_path / "tachograph.fish"
    script.write_bytes(completion.scripts(found)[completion.FISH])
    for line, offered in (("do", "doctor"), ("top --pro", "--prometheus"), ("blackbox ana", "analyze")):
        done = run("fish", "--no-config", "-c", f"source {script}; complete -C 'tachograph {line}'")
        assert done.stderr == ""
        assert [each.split("\t")[0] for each in done.stdout.splitlines()] == [offered]
        assert "\t" in done.stdout


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(found: Sequence[Help], tmp_path: Path) -> None:
    """In a terminal of its own, as its completions are to be had there alone."""
    (tmp_path / "_tachograph").write_bytes(completion.scripts(found)[completion.ZSH])
    terminal = f"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath=({tmp_path} \\$fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump; echo ready"
zpty -r shell answer '*ready*ready*'
zpty -w -n shell $'tachograph blackbox analyze --worl\\t'
zpty -r shell answer '*--world-size*' && print -r -- found
zpty -d shell
"""
    done = run("timeout", "-s", "KILL", "30", "zsh", "-f", "-c", terminal)
    assert "found" in done.stdout, done
