"""A node of a live replay: what a scraper sees while its exporter, its network or the node itself fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tachograph_lab.live.live_node import LiveNode, exposition
from tests.waiting import DEADLINE


def test_each_way_to_fail_is_what_a_scraper_meets(live: Callable[[], LiveNode], still: Any, looks: Any) -> None:
    """Only the exporter refuses while it is down; a node out of reach is silent; one that is down refuses all."""

    async def meets(address: str) -> str:
        try:
            page = await looks.page(address, DEADLINE if still.reachable else 0.3)
        except (ConnectionRefusedError, TimeoutError) as error:
            return type(error).__name__
        return "an exporter" if "tachograph_exporter_info" in page else "a host"

    async def play() -> dict[str, tuple[str, str]]:
        node = live()
        await node.open()
        found: dict[str, tuple[str, str]] = {}

        async def look(name: str) -> None:
            await node.follow()
            found[name] = (await meets(node.exporter_address), await meets(node.host_address))

        try:
            await look("healthy")
            still.exporter_up = False
            await look("exporter down")
            still.exporter_up, still.reachable = True, False
            await look("out of reach")
            still.reachable = True
            await look("healthy again")
            still.up = False
            await look("node down")
        finally:
            await node.close()
        return found

    refused, silent, healthy = "ConnectionRefusedError", "TimeoutError", ("an exporter", "a host")
    assert asyncio.run(play()) == {
        "healthy": healthy,
        "exporter down": (refused, "a host"),
        "out of reach": (silent, silent),
        "healthy again": healthy,
        "node down": (refused, refused),
    }


def test_nothing_is_left_of_a_closed_node(live: Callable[[], LiveNode]) -> None:
    """After `close` the addresses are free and the socket is gone, so that a second node can use them."""

    async def play() -> None:
        for _ in range(2):
            node = live()
            await node.open()
            assert node.socket.exists()
            await node.close()
            assert not node.socket.exists()

    asyncio.run(play())


def test_an_address_in_use_is_an_error(live: Callable[[], LiveNode]) -> None:
    """Two nodes cannot share an address: the second one fails, the first is unaffected."""

    async def play() -> None:
        first = live()
        await first.open()
        try:
            with pytest.raises(OSError, match="in use"):
                await live().open()
        finally:
            await first.close()

    asyncio.run(play())


def test_labels_are_escaped() -> None:
    """Quotes, backslashes and line feeds in a label's value are escaped."""
    assert exposition([("up", {"a": 'b"\\\nc', "d": "e"}, 1.0), ("load", {}, 0.5)]) == (
        'up{a="b\\"\\\\\\nc",d="e"} 1.0\nload 0.5\n'
    )
