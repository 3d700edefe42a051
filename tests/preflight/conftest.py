"""Fixtures of the checks that need no ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tachograph.preflight.exchange import NoExchange
from tachograph.preflight.options import PreflightOptions
from tachograph.preflight.site import PreflightSite


@pytest.fixture
def site() -> Callable[..., PreflightSite]:
    """Return a function that makes rank 0 of `world` ranks, `per_node` on each of the nodes a, b and so on."""

    def make(world: int = 4, per_node: int = 4, **given: Any) -> PreflightSite:
        nodes = {rank: "abcdefgh"[rank // per_node] for rank in range(world)}
        options = PreflightOptions(**given)
        return PreflightSite(
            options, NoExchange(), 0, world, 0, per_node, under_launcher=world > 1, node="a", node_of=nodes
        )  # fmt: skip

    return make
