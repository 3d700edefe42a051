"""The command that is supervised: `kubectl create -f FILE`, with kubectl's own options before and after `create`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VALUED = (
    "--context", "--kubeconfig", "--cluster", "--user", "--as", "--as-group", "--as-uid", "--server", "--token",
    "--certificate-authority", "--client-certificate", "--client-key", "--tls-server-name", "--cache-dir",
)  # fmt: skip
"""Options that say which API server it is, and who asks: `kubectl proxy` gets them, too."""
FLAGS = ("--insecure-skip-tls-verify",)
SHORT = {"-n": "--namespace", "-f": "--filename", "-s": "--server"}


def is_kubectl(command: Sequence[str]) -> bool:
    """Return whether a command is kubectl itself."""
    return Path(command[0]).name == "kubectl"


@dataclass(frozen=True)
class CreateCommand:
    """The words of such a command; `namespace` is empty where it names none."""

    program: str
    options: tuple[str, ...]
    namespace: str
    file: Path


def read_command(command: Sequence[str]) -> CreateCommand:
    """Return what a kubectl command says; raise ValueError for all but `create -f FILE`."""
    options: list[str] = []
    known: dict[str, list[str]] = {"--namespace": [], "--filename": []}
    verbs = []
    words = iter(command[1:])
    for word in words:
        name, has_value, value = word.partition("=")
        if name in SHORT or (word[:2] in SHORT and not word.startswith("--")):
            name, value = SHORT[word[:2]], word[2:].removeprefix("=")
            has_value = value
        if not word.startswith("-"):
            verbs.append(word)
        elif name in FLAGS:
            options.append(word)
        elif name in VALUED or name in known:
            value = value if has_value else next(words, "")
            if not value:
                raise ValueError(f"{name} has no value")
            if name in known:
                known[name].append(value)
            else:
                options.append(f"{name}={value}")
        else:
            raise ValueError(
                f"{name} is not understood here: expected kubectl create -f FILE, and who asks which server"
            )
    files = known["--filename"]
    if verbs != ["create"] or len(files) != 1:
        raise ValueError("expected kubectl create -f FILE, with one file")
    if files[0] == "-" or "://" in files[0]:
        raise ValueError(f"-f {files[0]}: expected a file, which the next supervisor reads, too")
    return CreateCommand(command[0], tuple(options), (known["--namespace"] or [""])[-1], Path(files[0]))
