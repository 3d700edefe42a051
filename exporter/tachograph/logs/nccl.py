"""The lines of NCCL_DEBUG=INFO that say which process is which rank, and by which network card it speaks."""

from __future__ import annotations

import re

from tachograph.logs.line import LogLine

CHANNEL = "via net/"
MARKS = ("nranks", CHANNEL, "net/ib : using", "net/ib: using", "net/socket : using", "net/ofi selected provider")
"""In lower case."""

_RANK = re.compile(r"\brank (\d{1,6}) nranks (\d{1,6})\b(?:.{0,40}\bnvmlDev (\d+))?")
_USING = re.compile(r"NET/(IB|Socket|IBext\w*) ?: Using (.{1,2000})")
_CARD = re.compile(r"\[(\d{1,3})\]\s?([\w.-]+(?::\d+)?)")
_CHANNEL = re.compile(r"(\d{1,6})\[\w+\] -> (\d{1,6})\[\w+\] \[(send|receive)\] via NET/(\w+)/(\d{1,3})")
_NAMED = re.compile(r"\b(mlx\d_(?:bond_)?\d+(?::\d+)?|(?:bnxt_re|irdma|efa_|hns_|ib)\d+|rdmap\w*\d\w*|roce\w*\d)\b")
_BELOW = re.compile(r"NCCL WARN|NET/|\bibv_|net_ib")
_MOST = 20_000
"""Lines of channels of one stream that are read; they stand at its beginning."""


class NcclFacts:
    """Which rank a process is, and which cards it uses; of one communicator of a run, the largest."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, int], tuple[int, int]] = {}
        self.cards: dict[str, dict[int, str]] = {}
        self.used: dict[int, set[int]] = {}
        self._channels = 0

    @property
    def full(self) -> bool:
        """Whether no further lines of channels are read."""
        return self._channels >= _MOST

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        if (match := _RANK.search(line.text)) and line.pid is not None:
            rank, ranks = int(match[1]), int(match[2])
            who = (line.node, line.pid)
            if ranks > self.ranks.get(who, (0, 0))[1]:
                self.ranks[who] = rank, ranks
        elif match := _USING.search(line.text):
            self.cards.setdefault(line.node, {}).update((int(at), name) for at, name in _CARD.findall(match[2]))
        else:
            self.channel(line.text)

    def channel(self, text: str) -> None:
        """Note what the line of one channel says: by which card a rank sends or receives."""
        if not self.full and (match := _CHANNEL.search(text)):
            self._channels += 1
            own = match[1] if match[3] == "send" else match[2]
            self.used.setdefault(int(own), set()).add(int(match[5]))

    def add(self, other: NcclFacts) -> None:
        """Add what another stream of the same run said."""
        for who, known in other.ranks.items():
            if known[1] > self.ranks.get(who, (0, 0))[1]:
                self.ranks[who] = known
        for node, cards in other.cards.items():
            self.cards.setdefault(node, {}).update(cards)
        for rank, used in other.used.items():
            self.used.setdefault(rank, set()).update(used)

    def rank_of(self, node: str, pid: int | None) -> int | None:
        """Return the rank of a process, None if no line says it."""
        known = None if pid is None else self.ranks.get((node, pid))
        return None if known is None else known[0]

    def card(self, text: str, node: str, rank: int | None) -> str:
        """Return the network card that a line names, else those that its rank uses, as text.

        "" if nothing says it, and for a line that is not about the network below NCCL.
        """
        if named := _NAMED.search(text):
            return named[1]
        if not _BELOW.search(text):
            return ""
        cards = self.cards.get(node, {})
        used = sorted(self.used.get(-1 if rank is None else rank, ()))
        return ", ".join(cards.get(one, f"device {one} of NCCL") for one in used)
