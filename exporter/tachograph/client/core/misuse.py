"""Wrong uses of the client by the training script: counted by kind, and each put into words once."""

from __future__ import annotations

from itertools import zip_longest

from tachograph.client.core.notice import notice
from tachograph.text.printable import printable
from tachograph.wire import MAX_NOTICE_BYTES, MAX_NOTICES, cut

WORDS = 4
"""Different misuses of one kind that are put into words; all others are only counted."""

WORD_LENGTH = 64


class WrongUse:
    """One misuse: what was called, how often, and what would have been right."""

    __slots__ = ("count", "other", "right", "text", "use", "wrong")

    def __init__(self, use: str, wrong: str, right: tuple[str, ...], hint: str, other: str) -> None:
        self.use = use
        self.wrong = wrong
        self.right = right
        self.other = other or f"expected one of {', '.join(right)}"
        self.text = printable(hint and f"{use} {hint}")
        self.count = 0

    def describe(self) -> str:
        """Return what is wrong in one line, with the nearest right word if there is one."""
        if not self.text:
            try:
                from difflib import get_close_matches  # late: nothing else needs it, and it costs an import
            except Exception:  # noqa: BLE001 - no free file descriptor, no memory: a later call tries again
                return printable(f"{self.use} is dropped: {self.other}")
            wrong = self.wrong.lower()
            near = get_close_matches(wrong, self.right, 1) or [
                word for word in self.right if f"{word}_".startswith(f"{wrong}_") or wrong.startswith(f"{word}_")
            ]
            self.text = printable(f"{self.use} is dropped: {f'did you mean {near[0]}?' if near else self.other}")
        return self.text


class Misuse:
    """The wrong uses of one recorder so far. Any thread may `note`; the sender thread reads, and writes to the log."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._found: dict[str, dict[str, WrongUse]] = {}
        self._told = 0

    def note(
        self,
        kind: str,
        use: str,
        hint: str = "",
        *,
        wrong: object = "",
        right: tuple[str, ...] = (),
        other: str = "",
    ) -> None:
        """Count a misuse of a kind of `catalog.rank.MISUSES`.

        `use` is what was called, as it would be read in the script; `hint` is what is wrong with it. Without a hint,
        `wrong` is a word that should have been one of `right`; `other` is said instead of them if none is near.
        """
        self._counts[kind] = self._counts.get(kind, 0) + 1
        found = self._found.setdefault(kind, {})
        one = found.get(use)
        if one is None:
            if len(found) >= WORDS:
                return
            word = wrong[:WORD_LENGTH] if type(wrong) is str else ""
            one = found[use] = WrongUse(use, word, right, hint, other)
        one.count += 1

    def metrics(self) -> dict[str, object]:
        """Return the counts by wire key and kind; empty while there are none."""
        return {"misuse_total": dict(self._counts)} if self._counts else {}

    def has(self, kind: str) -> bool:
        """Return whether there was a misuse of this kind."""
        return kind in self._counts

    def tell(self) -> None:
        """Log what was not logged before."""
        if self._found and len(uses := self._uses()) > self._told:
            self._told = len(uses)
            for one in uses:
                text = one.describe()
                notice(text, text)

    def conclude(self) -> None:
        """Log what the script got wrong in all, in one line, at the end of the record."""
        if uses := sorted(self._uses(), key=lambda one: -one.count):
            line = "; ".join(f"{one.count:,} × {one.describe()}" for one in uses[:MAX_NOTICES])
            notice(line, f"not recorded as meant: {line}")

    def notices(self) -> list[str]:
        """Return the texts for a frame: the first of each kind, then the others, as far as there is room."""
        if not self._found:
            return []
        kinds = [list(found.values()) for found in list(self._found.values())]
        chosen = [one for rank in zip_longest(*kinds) for one in rank if one is not None][:MAX_NOTICES]
        return [cut(one.describe(), MAX_NOTICE_BYTES) for one in chosen]

    def _uses(self) -> list[WrongUse]:
        return [one for found in list(self._found.values()) for one in list(found.values())]


def named(call: str, name: object) -> str:
    """Return a call with an argument as it would be read in the script."""
    return f"{call}({str.__str__(name)[:WORD_LENGTH] if issubclass(type(name), str) else '?'}=…)"
