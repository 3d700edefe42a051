"""docs/security.md, and the limits of docs/web.md: each number on them is the one that the code keeps."""

from __future__ import annotations

from pathlib import Path

from tachograph import wire
from tachograph.node import log
from tachograph.node.ranks import (
    boxes,
    claims,
    earlier_processes,
    listener,
    names,
    rank_connection,
    run_names,
    series,
    shares,
    silent_ranks,
    state_file,
    user_names,
)
from tachograph.node.ranks.limits import USERS, Limits
from tachograph.node.web import http_connections, web_access

PAGE, WEB = (
    (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8") for name in ("security.md", "web.md")
)


def test_numbers() -> None:
    """Limits of users, frames, names, pages, passwords and files are those in force."""
    given = Limits()
    for words in (
        f"{given.connections} (2 × `limits.ranks`), all users {given.node_connections}",
        f"without a hello | {listener.GREETING_SECONDS:g} s",
        f"{given.ranks} (`limits.ranks`), all users {given.node_ranks}",
        f"| {names.NAMES_BURST:,} at once, {names.NAMES_PER_HOUR:,} an hour |",
        f"charged for {names.RANK_SERIES} series",
        f"facts in a hello for {names.FACT_SERIES}. ",
        f"the last {names.MOST_RANKS:,} ranks of a user",
        f"all users {silent_ranks.MAX_SILENT} a second, in equal parts",
        f"| {earlier_processes.MAX_FORGOTTEN} |",
        f"{given.series:,} (`limits.series`), {given.series_per_rank} of one rank, {given.label_values} values",
        f"values of a label, {given.layers} of layers |",
        f"all users {shares.WORK_RATE:g} s a second, {shares.WORK_BURST:g} s at once",
        f"{wire.MAX_RATE_HZ:g} a second, {rank_connection.BURST} at once, {wire.MAX_FRAME_BYTES:,} bytes each",
        f"{rank_connection.MAX_KEPT_BYTES // 2**20} MiB |",
        f"{boxes.USER_BYTES >> 20} MiB, all users {boxes.NODE_BYTES >> 20} MiB; {wire.MAX_BOX_BYTES >> 10} KiB each",
        f"{wire.MAX_NAME_BYTES}, {claims.MAX_FACT_BYTES}, {series.MAX_LABEL_BYTES} bytes",
        f"at most {run_names.MAX_SHOWN_BYTES} bytes. An owner's name longer than {run_names.MAX_OWNER_BYTES} bytes",
        f"first rank waits {user_names.PATIENCE_SECONDS:g} s for it",
        f"{series.MOST_FAMILIES}; {2 * given.label_values}, of layers {2 * given.layers} |",
        f"at most {state_file.MAX_BYTES // 2**20} MiB",
        f"{log.BURST} lines of one message",
    ):
        assert words in PAGE, words
    for words in (
        f"TLS handshake included | {http_connections.HEADER_SECONDS:g} s",
        f"headers and body | {http_connections.REQUEST_BYTES // 1024} KiB",
        f"taking an answer | {http_connections.ANSWER_SECONDS:g} s",
        f"requests on a connection | {http_connections.KEEP_ALIVE_SECONDS:g} s",
        f"{web_access.MOST_CHECKS} in all",
    ):
        assert words in WEB, words
    assert USERS == 4, "the page says that four users can fill a node"
