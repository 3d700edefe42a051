"""`tachograph supervise history` and `confirm`, which read a journal beside the supervisor that writes it."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from tachograph.command_line import CommandParser
from tachograph.files import atomic_file
from tachograph.supervise import history, journal
from tachograph.supervise.journal import DECISION, ENDED, INTENT, OUTCOME, SUPERVISOR, Entry
from tachograph.supervise.permission import CONFIRMATIONS, is_confirmed
from tachograph.supervise.totals import ASKED
from tachograph.text.printable import printable
from tachograph.text.wrapping import fitted

FOLDER = "tachograph-supervise"
HISTORY_EPILOG = """\
exit status:
  0  shown
  1  there is no journal
  2  wrong arguments
"""
CONFIRM_EPILOG = """\
exit status:
  0  confirmed
  1  there is no such question, it is answered already, or is another user's
  2  wrong arguments
"""


def state_folder(run: str) -> Path:
    """Return the usual folder of a run's journal, below the working directory."""
    return Path(FOLDER) / quote(run, safe="").replace(".", "%2E")


def say(text: str) -> None:
    """Write a line to standard error, if there is one."""
    with suppress(OSError, AttributeError):  # a full disk, a lost terminal, no standard error: no end of a training
        sys.stderr.write(f"{printable(f'tachograph supervise: {text}')}\n")
        sys.stderr.flush()


def _journal_parser(name: str, description: str, epilog: str) -> CommandParser:
    parser = CommandParser(
        prog=f"tachograph supervise {name}", description=description, epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--state", type=Path, metavar="FOLDER", help=f"of the journal (default: {FOLDER}/RUN)")
    return parser


def _journal_of(given: argparse.Namespace) -> Path:
    """Return the journal that is meant: of --state, of the run, or the only one below the working directory."""
    if given.state is not None:
        return Path(given.state) / journal.NAME
    if given.run is not None:
        return state_folder(given.run) / journal.NAME
    found = sorted(Path(FOLDER).glob(f"*/{journal.NAME}"))
    return found[0] if len(found) == 1 else Path(FOLDER) / "RUN" / journal.NAME


def show_history(words: Sequence[str]) -> int:
    """Print what a journal has; return the exit status."""
    parser = _journal_parser(
        "history", "Show what was found of a run, what was decided, and what came of it.", HISTORY_EPILOG
    )
    parser.add_argument("run", metavar="RUN", nargs="?", help="the run (default: the only one that has a journal here)")
    given = parser.parse_args(words)
    path = _journal_of(given)
    try:
        entries = journal.read(path)
    except OSError as error:
        say(f"no journal: {path}: {error.strerror or error}; --state names its folder")
        return 1
    print(fitted(*history.lines(entries, time.time()), hang=34))  # where the texts begin
    return 0


def confirm(words: Sequence[str]) -> int:
    """Have a question answered; return the exit status."""
    parser = _journal_parser("confirm", "Let a decision that waits in ask mode be carried out.", CONFIRM_EPILOG)
    parser.add_argument("id", metavar="ID", help="the decision, as it was asked")
    parser.add_argument("run", metavar="RUN", nargs="?", help="the run (default: the only one that has a journal here)")
    given = parser.parse_args(words)
    path = _journal_of(given)
    try:
        if os.geteuid() not in journal.owners(path):
            say(f"not confirmed: {path} belongs to another user, who alone may confirm, with root")
            return 1
        entries = journal.read(path)
        question = open_question(entries, given.id)
        if question is None:
            say(f"no question {given.id} waits in {path}: it is answered, withdrawn, or of another run")
            return 1
        owner = next((one for one in reversed(entries) if one["kind"] == SUPERVISOR), None)
        if owner is not None and not journal.is_alive(owner):
            say(
                f"not confirmed: the supervisor that asked, process {owner['pid']}, has ended. Start it again: what is "
                "still wrong then is asked again"
            )
            return 1
        folder = path.parent / CONFIRMATIONS
        folder.mkdir(mode=0o700, exist_ok=True)
        said = {"by": os.getuid(), "time": time.time()}
        atomic_file.replace(folder / given.id, json.dumps(said).encode() + b"\n", 0o600)
        if not is_confirmed(path.parent, given.id):
            say(f"not confirmed: {folder} is another user's or a link, or others may write to it: remove it")
            return 1
    except OSError as error:
        say(f"not confirmed: {path}: {error.strerror or error}; --state names the folder of the journal")
        return 1
    print(fitted(f"confirmed: {question['action']}, {question['why']}. {question['text']}"))
    return 0


def open_question(entries: Sequence[Entry], number: str) -> Entry | None:
    """Return the question of this id, None if there is none, or it no longer waits: its attempt is over."""
    if not re.fullmatch(r"[0-9a-f]{6}", number):
        return None
    found = None
    for entry in entries:
        kind = entry["kind"]
        if kind == DECISION and entry["id"] == number and entry["outcome"] == ASKED:
            found = entry
        elif kind in (ENDED, SUPERVISOR) or (kind in (INTENT, OUTCOME) and entry["id"] == number):
            found = None
    return found
