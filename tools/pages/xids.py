"""The page of all Xids, `docs/xids.md`: rendered from the data file."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tachograph.node.xid.counts import LOG_SECONDS, RESTART_SECONDS, WINDOW_SECONDS
from tachograph.node.xid.xid_table import DATA, XidRow, load

_PAGE = """\
# Xids: what pages, and what to do

An Xid is an error that the NVIDIA driver reports for a GPU. Each is counted in
`tachograph_gpu_xid_errors_total{{gpu,uuid,xid}}`, with the Unix time of the last one in
`tachograph_gpu_xid_timestamp_seconds`, and what it means and what to do in
`tachograph_gpu_xid_info{{action,meaning}}`.

They come from NVML's events, which have only what NVML considers critical, and, where the exporter may read it, from
the kernel's log (`--gpu.kmsg`, by default `/dev/kmsg`; with `kernel.dmesg_restrict=1` that takes `CAP_SYSLOG`). Both
report the same event, and one fault can write thousands of lines: for {window} after a counted Xid the same one on
the same GPU is not counted again. Of what the log holds when the exporter starts, the last {restart} are counted; of
what is older only the time is shown.

For the Xids of NVLink 5 (144 to 150) above all, only the log says how bad they are:
`145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (…)`. What the driver calls nonfatal there, and what was injected for a test
(`i1`), is counted in `tachograph_gpu_xid_nonfatal_total{{gpu,uuid,xid}}` alone and pages nobody. An NVML event waits
{log} for the log; where the log is not read, it counts as fatal.

The tables are the data file `exporter/tachograph/node/xid/{file}`, version {version}, which also names its sources.
To change it, edit it, then run `make docs`. An Xid that is not in it is counted; its action is `unknown` and it pages
nobody.

| action | what to do |
|---|---|
| `application` | Look at the program that ran. If different programs get it on the same GPU, suspect the GPU. |
| `reset` | Take the work off the GPU and reset it (`nvidia-smi --gpu-reset`); if it comes back, return the board. |
| `reboot` | Take the work off the node and reboot it; if it comes back, return the board. |
| `return` | Take the board out of service: cables and seating first, then the vendor. |
| `ignore` | Nothing by itself. Where another Xid comes with it, follow that one. |
| `unknown` | Look it up in NVIDIA's Xid catalog. |

## These page

| Xid | action | meaning |
|---|---|---|
{paging}

## The others

{others}
"""


def xids_page() -> str:
    """Return the page in Markdown."""
    table = load()
    rows = [row for _, row in sorted(table.rows.items())]
    return _PAGE.format(
        window=f"{WINDOW_SECONDS:.0f} seconds",
        restart=f"{RESTART_SECONDS / 60:.0f} minutes",
        log=f"{LOG_SECONDS:.0f} seconds",
        file=DATA.name,
        version=table.version,
        paging=_lines((row.number, f"`{row.action}`", row.meaning) for row in rows if row.pages),
        others="\n\n".join(_of_action(action, rows) for action in dict.fromkeys(row.action for row in rows)),
    )


def _of_action(action: str, rows: Iterable[XidRow]) -> str:
    """Return the Xids of one action that page nobody, under its heading; engines of a kind share a row."""
    numbers: dict[str, list[int]] = {}
    for row in rows:
        if row.action == action and not row.pages:
            numbers.setdefault(re.sub(r" \d+$", "", row.meaning), []).append(row.number)
    lines = _lines((", ".join(map(str, same)), meaning) for meaning, same in numbers.items())
    return f"### `{action}`\n\n| Xid | meaning |\n|---|---|\n{lines}"


def _lines(rows: Iterable[tuple[object, ...]]) -> str:
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)
