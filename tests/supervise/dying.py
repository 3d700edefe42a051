"""`python -m tests.supervise.dying NUMBER FILE …` is `tachograph …` that is killed before its side effect of a number.

Each side effect before that is a line of the file.
"""

from __future__ import annotations

import os
import sys

from tachograph.__main__ import main
from tests.supervise.side_effects import SideEffects

if __name__ == "__main__":
    number, file, *arguments = sys.argv[1:]
    notes = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(name: str) -> None:
        os.write(notes, f"{name}\n".encode())

    with SideEffects(int(number), note):
        status = main(arguments)
    sys.exit(status)
