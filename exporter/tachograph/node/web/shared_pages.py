"""Pages that are made at most once per tick and shared by all who ask for them in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable


class SharedPages:
    """Keeps what was made in the present generation; the next one begins empty."""

    def __init__(self, generation: Callable[[], int]) -> None:
        self._generation = generation
        self._of: int | None = None
        self._made: dict[Hashable, asyncio.Future[bytes]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the page of that key; who asks while it is being made waits for the same one."""
        if (now := self._generation()) != self._of:
            self._of, self._made = now, {}
        page = self._made.get(key)
        if page is None:
            page = self._made[key] = asyncio.ensure_future(make())
        return await asyncio.shield(page)  # one client that leaves must not take it from the others
