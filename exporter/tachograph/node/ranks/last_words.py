"""The last words of a rank that failed: their category, by the table of signatures, and the line, if it may be shown.

`/metrics` and pages are read by people who may not read the rank's log. So a line is shown only if a row of the table
knows it, without what looks like a secret, and in plain characters; of any other exception its type alone is shown, or
the exit code.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tachograph.catalog.rank import CATEGORY_OF_REASON
from tachograph.signatures import table as signatures
from tachograph.text.plain import plain
from tachograph.text.redact import redact

LONGEST = 256
"""Characters of a message that are looked at: the patterns take 2 ms at most for so many, whatever they are."""

END_SHOWN_SECONDS = 120.0
"""Time for which the end of a rank's process is shown even if the next one has begun: a launcher may restart it before
a scrape has seen the end, and who ended first is known only when every node of the run has been scraped."""

_TOLD = ("terminated", "interrupted")
_UNSPECIFIC = ("exit_code", "exception")
_EXIT_CODE = re.compile(r"(exit code -?\d{1,10})(?: after |: |$)")
_EXCEPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}(?=:|$)")


class LastWords(NamedTuple):
    """One of catalog.FAILURE_CATEGORIES, and a line that anybody may read or ""; both are "" where nobody failed."""

    category: str = ""
    line: str = ""


SILENCE = LastWords()


class EarlierEnd(NamedTuple):
    """How an earlier process of a rank ended: when, and when it began, by the monotonic clock.

    `ended` is when that was seen, `at` when it failed, if it said so before. `restarts` counts the processes of the
    rank before it.
    """

    ended: float
    at: float
    began: float
    restarts: int
    reason: str
    said: LastWords
    step: int | None

    def shown(self, now: float) -> tuple[float, str] | None:
        """Return when and why it ended, as long as that is shown beside the next process."""
        return None if now - self.ended >= END_SHOWN_SECONDS else (self.at, self.reason)


@lru_cache(maxsize=64)
def last_words(reason: str, message: str) -> LastWords:
    """Return the last words of a rank that failed for one of catalog.FAILURE_REASONS, with the message it left."""
    usual = CATEGORY_OF_REASON[reason]
    code = _EXIT_CODE.match(message)
    message = message[code.end() if code else 0 :][:LONGEST].strip()
    left = code[1] if code else ""
    if reason in _TOLD or not message:
        return LastWords(usual, "" if reason in _TOLD else left)
    row = signatures.classify(message, failed=True)
    if row is None or row.role == "advice" or row.weak:
        kind = _EXCEPTION.match(message)
        is_better = row is not None and row.role != "advice" and reason in _UNSPECIFIC
        return LastWords(row.category if row and is_better else usual, plain(kind[0]) if kind else left)
    return LastWords(row.category, plain(redact(message.splitlines()[0])))
