"""Completions of commands and options for bash, zsh and fish, made of the help texts."""

from __future__ import annotations

from collections.abc import Sequence

from tools.debian.help_texts import Help

BASH = "usr/share/bash-completion/completions/tachograph"
ZSH = "usr/share/zsh/vendor-completions/_tachograph"
FISH = "usr/share/fish/vendor_completions.d/tachograph.fish"


def scripts(found: Sequence[Help]) -> dict[str, bytes]:
    """Return the three scripts by path."""
    return {BASH: bash(found).encode(), ZSH: zsh(found).encode(), FISH: fish(found).encode()}


def _top(found: Sequence[Help]) -> list[Help]:
    return [one for one in found if " " not in one.name]


def _below(found: Sequence[Help], name: str) -> list[Help]:
    return [one for one in found if one.name.startswith(f"{name} ")]


def bash(found: Sequence[Help]) -> str:
    """Return the script for bash: what follows a command are its options, and files."""
    cases = []
    for one in found:
        words = [*one.commands(), *one.options()]
        cases.append(f'    "{one.name}") words="{" ".join(words)}" ;;')
    parents = "|".join(one.name for one in _top(found) if one.commands())
    first = " ".join([*(one.name for one in _top(found)), "--help", "--version"])
    lines = [
        "# Made of the help texts.",
        "_tachograph() {",
        '  local words="" name="${COMP_WORDS[1]}"',
        f'  [[ $COMP_CWORD -gt 2 && "$name" == @({parents}) ]] && name="$name ${{COMP_WORDS[2]}}"',
        '  case "$name" in',
        *cases,
        "  esac",
        f'  [[ $COMP_CWORD -eq 1 ]] && words="{first}"',
        '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))',
        "}",
        "complete -o bashdefault -o default -F _tachograph tachograph",
    ]
    return "\n".join(lines) + "\n"


def zsh(found: Sequence[Help]) -> str:
    """Return the script for zsh, with what is said of each command and option."""
    lines = ["#compdef tachograph", "# Made of the help texts.", "", "_tachograph() {", "  local -a names"]
    lines += _zsh_names(2, _top(found))
    lines.append("  local name=$words[2]")
    for one in _top(found):
        if one.commands():
            lines += [f'  if [[ $name == "{one.name}" ]]; then', *_zsh_names(3, _below(found, one.name))]
            lines += ['    name="$name $words[3]"', "  fi"]
    lines.append('  case "$name" in')
    for one in found:
        options = [_zsh_option(option, takes, text) for option, (takes, text) in one.options().items()]
        lines.append(f'    "{one.name}") _arguments -S {" ".join(options)} "*:file:_files" ;;')
    return "\n".join([*lines, "  esac", "}", "", '_tachograph "$@"']) + "\n"


def _zsh_names(place: int, shown: Sequence[Help]) -> list[str]:
    names = " ".join(_quoted(f"{one.name.split()[-1]}:{one.summary.replace(':', ' -')}") for one in shown)
    then = f"  if (( CURRENT == {place} )); then names=({names}); _describe command names; return; fi"
    return [then]


def _zsh_option(option: str, takes: bool, text: str) -> str:
    said = text.replace("\\", "").replace("[", "(").replace("]", ")").replace(":", " -")
    return _quoted(f"*{option}{'=' if takes else ''}[{said}]{':value:_files' if takes else ''}")


def fish(found: Sequence[Help]) -> str:
    """Return the script for fish, with what is said of each command and option."""
    names = " ".join(one.name for one in _top(found))
    lines = ["# Made of the help texts."]
    for one in _top(found):
        when = f"not __fish_seen_subcommand_from {names}"
        lines.append(f"complete -c tachograph -n '{when}' -f -a {one.name} -d {_said(one)}")
    for one in found:
        first, *rest = one.name.split()
        when = "; and ".join(f"__fish_seen_subcommand_from {each}" for each in (first, *rest))
        below = _below(found, one.name) if not rest else []
        for other in below:
            last = other.name.split()[-1]
            lines.append(f"complete -c tachograph -n '{when}' -a {last} -d {_said(other)}")
        for option, (takes, text) in one.options().items():
            more = " -r" if takes else ""
            lines.append(f"complete -c tachograph -n '{when}' -l {option[2:]}{more} -d {_quoted(text)}")
    return "\n".join(lines) + "\n"


def _said(one: Help) -> str:
    return _quoted(one.summary)


def _quoted(text: str) -> str:
    """Return a text in single quotes, which the three shells read alike if it has neither quote nor backslash."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"
