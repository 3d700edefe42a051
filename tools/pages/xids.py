"""The page on all Xids, `docs/xids.md`: rendered from the data file."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tachograph.node.xid.counts import RESTART_SECONDS, WINDOW_SECONDS
from tachograph.node.xid.xid_table import DATA, XidRow, load

_LAST_WORD = re.compile(r"(?:(?<=engine)|(?<=coder)) \d+$| in unit \w+$")
"""Which of several equal engines or units it is."""

_PAGE = """\
# Xids

Xids are errors that the NVIDIA driver reports. `tachograph_gpu_xid_errors_total{{gpu,uuid,xid}}` counts them,
`tachograph_gpu_xid_info{{action,meaning}}` says what to do. They come from NVML, which has only critical ones, and from
the [kernel's log](kernel.md) if the exporter may read it. The same Xid on the same GPU counts once in {window}. For an
Xid logged more than {restart} before the exporter's start, only its time is shown.

Only the log says whether an Xid of NVLink 5 (144 to 150) is nonfatal (`145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (…)`) or
injected for a test (`i1`). Then `tachograph_gpu_xid_nonfatal_total{{gpu,uuid,xid}}` counts it, and it pages nobody.
Without the log it counts as fatal.

**Bold** Xids page. Xids not listed here are `unknown` and page nobody. Version {version} of
`exporter/tachograph/node/xid/{file}`.

{actions}
"""

_WHAT_TO_DO = {
    "application": "Look at the program that ran. If different programs get it on the same GPU, suspect the GPU.",
    "reset": "Take the work off the GPU and reset it (`nvidia-smi --gpu-reset`); if it comes back, return the board.",
    "reboot": "Take the work off the node and reboot it; if it comes back, return the board.",
    "return": "Take the board out of service: cables and seating first, then the vendor.",
    "ignore": "Nothing by itself. Where another Xid comes with it, follow that one.",
    "unknown": "Look it up in NVIDIA's Xid catalog.",
}


def xids_page() -> str:
    """Return the page in Markdown."""
    table = load()
    rows = [row for _, row in sorted(table.rows.items())]
    return _PAGE.format(
        window=f"{WINDOW_SECONDS:.0f} seconds",
        restart=f"{RESTART_SECONDS / 60:.0f} minutes",
        file=DATA.name,
        version=table.version,
        actions="\n\n".join(_of_action(action, rows) for action in _WHAT_TO_DO),
    )


def _of_action(action: str, rows: Iterable[XidRow]) -> str:
    """Return the Xids of an action under its heading; those that differ in an engine or unit alone share a line."""
    alike: dict[tuple[str, bool], list[XidRow]] = {}
    for row in rows:
        if row.action == action:
            alike.setdefault((_LAST_WORD.sub("", row.meaning), row.pages), []).append(row)
    lines = (f"- {'**' * pages}{_numbers(same)}{'**' * pages}: {meaning}" for (meaning, pages), same in alike.items())
    return f"## `{action}`\n\n{_WHAT_TO_DO[action]}\n\n" + "\n".join(lines)


def _numbers(rows: Iterable[XidRow]) -> str:
    """Return the numbers of Xids: `8`, `11, 25`, and from three in a row `98–105`."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row.number == runs[-1][-1] + 1:
            runs[-1].append(row.number)
        else:
            runs.append([row.number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
