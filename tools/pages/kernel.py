"""The page of what the kernel's log says beside Xids, `docs/kernel.md`: rendered from the table of signatures."""

from __future__ import annotations

from tachograph.node.xid.counts import RESTART_SECONDS
from tachograph.node.xid.kernel_events import MOST_MESSAGES, MOST_OF_A_KIND, SHOWN_SECONDS
from tachograph.node.xid.kernel_signatures import SIGNATURES, Signature
from tachograph.printable import LONGEST_PLAIN
from tachograph.signatures.table import table

_PAGE = """\
# The kernel's log: what it says, and what to do

Where the exporter may read the kernel's log (`--gpu.kmsg`, by default `/dev/kmsg`; where `kernel.dmesg_restrict` is 1
that takes `CAP_SYSLOG`), it looks for the messages below, besides [Xids](xids.md). Each is counted in
`tachograph_node_kernel_events_total{{kind}}`; of what the log holds when the exporter starts, the last {restart} are
counted. Where the log cannot be read, as in a container without it, these series are absent, and the exporter logs why.

`tachograph_node_kernel_message_age_seconds{{kind,text}}` has the newest messages as they were written, for {shown}: at
most {most}, {of_a_kind} of a kind, each cut to {longest} characters. The pages RankDead, RankFailed, RankFrozen,
RunHung, CheckpointSlow and NodeDown quote the last one of the node, or of the run's nodes where no rank is named, from
two minutes before the rank ended or the run made its last step:

> Kernel of node-27, 3 s before: nfs: server fs01 not responding, still trying.

Only the kernel writes these; a program that writes to `/dev/kmsg` is passed over. But a message may have the name of a
process in it, which any program chooses: every character but letters, digits and plain punctuation is shown as `?`,
and so are addresses in memory.

| kind | category | meaning | what to do |
|---|---|---|---|
{rows}

Which messages are of a kind says `exporter/tachograph/node/xid/kernel_signatures.py`, what they mean the table of
[`tachograph logs`](logs.md), `exporter/tachograph/signatures/signatures.yaml`. Edit them, then run `make docs`.
"""


def kernel_page() -> str:
    """Return the page in Markdown."""
    return _PAGE.format(
        restart=f"{RESTART_SECONDS / 60:.0f} minutes",
        shown=f"{SHOWN_SECONDS / 60:.0f} minutes",
        most=MOST_MESSAGES,
        of_a_kind=MOST_OF_A_KIND,
        longest=LONGEST_PLAIN,
        rows="\n".join(map(_row, SIGNATURES)),
    )


def _row(kind: Signature) -> str:
    explained = [row for row in table().rows if row.name in kind.rows]
    categories = dict.fromkeys(row.category for row in explained)
    steps = dict.fromkeys(step for row in explained for step in row.next)
    cells = (f"`{kind.kind}`", ", ".join(categories), " ".join(row.cause for row in explained), "; ".join(steps))
    return f"| {' | '.join(cells)} |"
