"""The page on what the kernel's log says besides Xids, `docs/kernel.md`: rendered from the table of signatures."""

from __future__ import annotations

from collections.abc import Iterable

from tachograph.node.xid.counts import RESTART_SECONDS
from tachograph.node.xid.kernel_events import MOST_MESSAGES, MOST_OF_A_KIND, SHOWN_SECONDS
from tachograph.node.xid.kernel_signatures import SIGNATURES
from tachograph.signatures.table import table
from tachograph.text.plain import LONGEST_PLAIN

_PAGE = """\
# The kernel's log

If the exporter may read the kernel's log (`--gpu.kmsg`; `kernel.dmesg_restrict=1` requires `CAP_SYSLOG`), it counts
these messages in `tachograph_node_kernel_events_total{{kind}}`, including those of the {restart} before its start.
`tachograph_node_kernel_message_age_seconds{{kind,text}}` has the newest ones for {shown} ({most} at most, {of_a_kind}
of a kind, {longest} characters each), and pages quote the last one. Messages from programs are ignored. Memory
addresses, and anything but letters, digits and plain punctuation, are shown as `?`.

| kind | meaning | what to do |
|---|---|---|
{rows}
"""


def kernel_page() -> str:
    """Return the page in Markdown."""
    return _PAGE.format(
        restart=f"{RESTART_SECONDS / 60:.0f} minutes",
        shown=f"{SHOWN_SECONDS / 60:.0f} minutes",
        most=MOST_MESSAGES,
        of_a_kind=MOST_OF_A_KIND,
        longest=LONGEST_PLAIN,
        rows="\n".join(_row(kinds, rows) for rows, kinds in _alike().items()),
    )


def _alike() -> dict[tuple[str, ...], list[str]]:
    """Return the kinds by what is known of them: one row for those that mean the same."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for signature in SIGNATURES:
        kinds.setdefault(signature.rows, []).append(f"`{signature.kind}`")
    return kinds


def _row(kinds: Iterable[str], names: Iterable[str]) -> str:
    explained = [row for row in table().rows if row.name in names]
    steps = dict.fromkeys(step for row in explained for step in row.next)
    return f"| {', '.join(kinds)} | {' '.join(row.cause for row in explained)} | {'. '.join(steps)}. |"
