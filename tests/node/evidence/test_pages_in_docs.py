"""docs/blackbox.md and docs/web.md: each number on them is the one that the code keeps."""

from __future__ import annotations

from pathlib import Path

from tachograph.blackbox import served
from tachograph.collect import command
from tachograph.node.config import DEFAULT_RAS
from tachograph.node.evidence import analyses, analyst, nccl_ras, peers
from tachograph.node.ranks.rank_table import CAPTURE_SECONDS
from tachograph.node.web.private import PUBLIC_OF_BOX

DOCS = Path(__file__).parents[3] / "docs"


def test_numbers() -> None:
    """Limits of the page, of an analysis, of a capture and of NCCL's RAS service are those in force."""
    blackbox, web = ((DOCS / name).read_text(encoding="utf-8") for name in ("blackbox.md", "web.md"))
    cost = f"{analyst.CPU_SECONDS} s of CPU, {analyses.LONGEST_SECONDS:.0f} s"
    for words, page in (
        (
            f"up to {peers.MOST_PEERS:,} exporters and {analyst.FETCH_SECONDS:.0f} s, {peers.AT_A_TIME} at a time",
            blackbox,
        ),
        (cost, blackbox),
        (f"({analyst.MEMORY_BYTES >> 30} GiB, less in a container", blackbox),
        (f"kept for {analyses.KEPT_SECONDS:.0f} s, or for a minute while nothing changes", blackbox),
        (f"(`--wait {command.WAIT_SECONDS:.0f}s`)", blackbox),
        (f"at most once in {CAPTURE_SECONDS:.0f} s, however many people ask", blackbox),
        (f"by default `{DEFAULT_RAS}`", blackbox),
        (f"for at most {nccl_ras.SECONDS:.0f} s and {served.LARGEST_RAS >> 20} MiB", blackbox),
        (f"{cost}, {analyst.MEMORY_BYTES >> 30} GiB; kept for {analyses.KEPT_SECONDS:.0f} s", web),
        (f"kept for {analyses.KEPT_SECONDS:.0f} s, {analyses.SAME_SECONDS:.0f} s while nothing changes", web),
        (
            f"three times as long, at most {analyses.LONGEST_REST_SECONDS:.0f} s | {analyses.MOST_OF_ASKER} wait, "
            f"{analyses.MOST_WAITING} in all",
            web,
        ),
    ):
        assert words in " ".join(page.split()), words
    assert analyses.REST == 3
    assert served.CAPTURED_TOGETHER_SECONDS == CAPTURE_SECONDS
    for key in ("log", "environment", "stacks"):
        assert key not in PUBLIC_OF_BOX
        assert f"`{key}`" in web
