"""Saves the rank table's totals to the state file, every other second if they changed."""

from __future__ import annotations

import asyncio
import logging
import time

from msgspec import structs

from tachograph.node.log import OncePerMinute
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.saved_totals import encode
from tachograph.node.ranks.state_file import MAX_BYTES, StateFile, boot_id

SAVE_EVERY_TICKS = 2
"""Saving wakes a thread. Sums on the page are as old as the last save; a restart takes nothing back, for what ranks
counted since then is added when they go on."""

PATIENCE_SECONDS = 5.0
"""Time that sums may wait for a disk that does not respond; then they are shown unsaved."""

_log = logging.getLogger(__name__)


class StateKeeper:
    """Saves what the next exporter needs, and shows the sums over runs only once they are saved."""

    def __init__(self, table: RankTable, file: StateFile) -> None:
        self._table = table
        self._file = file
        self._boot = boot_id()
        self._saved = b""
        self._ticks = 0
        self._saving: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._lines = OncePerMinute(_log, time.monotonic)

    def restore(self) -> None:
        """Load what the previous exporter saved into the table; from now on sums are shown once they are saved."""
        if (saved := self._file.load()) is not None:
            self._table.restore(saved)
        self._table.kept_sums = self._table.sums()

    def tick(self) -> None:
        """Start a save at every other call, unless one is running; call it about once a second."""
        self._ticks += 1
        if self._saving is None and self._ticks % SAVE_EVERY_TICKS == 0:
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def close(self) -> None:
        """Save one last time."""
        if self._saving is not None:
            await asyncio.wait({self._saving}, timeout=PATIENCE_SECONDS / 10)
        await asyncio.wait({asyncio.get_running_loop().create_task(self._save())}, timeout=PATIENCE_SECONDS / 10)

    async def _save(self) -> None:
        sums = self._table.sums()
        try:
            totals = self._table.saved(self._boot)
            data = encode(totals)
            if len(data) > MAX_BYTES:  # of forgotten ranks there may be many, where users have many uids
                data = encode(structs.replace(totals, lives=[]))
            if data != self._saved:
                await self._write(data)
                self._saved = data
        except Exception as error:  # noqa: BLE001 - whatever fails, sums must still be shown
            self._lines.warning(
                f"state file not written: after a restart of the exporter sums over runs start at 0: {error}",
                None if isinstance(error, (OSError, ValueError)) else error,
                file=self._file.path,
            )
        self._table.kept_sums = sums
        self._saving = None

    async def _write(self, data: bytes) -> None:
        """Write in a thread, one at a time: a disk that hangs must block neither scrapes nor ranks."""
        if self._writing is not None:  # given up earlier: what it wrote is older than `data`
            if not self._writing.done():
                raise OSError("an earlier write has not finished")
            self._writing.exception()
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._file.save, data))
        await asyncio.wait({self._writing}, timeout=PATIENCE_SECONDS)
        if not self._writing.done():
            raise OSError(f"not written within {PATIENCE_SECONDS:g} s")
        writing, self._writing = self._writing, None
        writing.result()
