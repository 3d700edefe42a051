"""The exporter as a whole: one event loop with the socket of the ranks, the GPU worker, and the HTTP server."""

from __future__ import annotations

import asyncio
import gc
import logging
import platform
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tachograph._version import __version__
from tachograph.catalog import index as catalog
from tachograph.catalog.metric import ALL
from tachograph.node import log
from tachograph.node.clock import Clock
from tachograph.node.config import LIVE, Config, read_config
from tachograph.node.config_file import ConfigError
from tachograph.node.evidence.routes import Evidence
from tachograph.node.histograms import HistogramSample
from tachograph.node.log import OncePerMinute
from tachograph.node.nic.port_reading import PortReader
from tachograph.node.nic.shown_ports import ShownPorts
from tachograph.node.nic.sysfs_ports import SysfsPorts
from tachograph.node.node_name import node_name
from tachograph.node.page_budget import fit
from tachograph.node.process_samples import process_samples
from tachograph.node.ranks.listener import Listener
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.run_names import RunNames
from tachograph.node.ranks.shown_ranks import ShownRanks
from tachograph.node.ranks.state_file import StateFile
from tachograph.node.ranks.state_keeper import StateKeeper
from tachograph.node.recent_peak import RecentPeak
from tachograph.node.samples import Sample
from tachograph.node.scrape_times import ScrapeTimes
from tachograph.node.service_manager import ServiceManager
from tachograph.node.shown_gpus import GpuReader, NoGpus, ShownGpus
from tachograph.node.unix_socket import SocketPathError
from tachograph.node.web.http_log import quiet_loop
from tachograph.node.web.listening_sockets import NoSocketError, inherited_sockets
from tachograph.node.web.private import MayRead
from tachograph.node.web.server import Pages, Server

if TYPE_CHECKING:  # what only a page for people needs is loaded by the first who looks: it takes 1 MB
    from tachograph.node.api.answer import NodeAnswer
    from tachograph.node.status_page.page import Sections

TICK_SECONDS = 1.0
MOST_DESCRIPTORS = 4096
LOOK_SECONDS = 0.05
"""Between two looks whether the last scrape has come."""
LAST_WAIT_SECONDS = 0.5
"""Time given to the GPU worker to exit when the exporter stops; one that hangs in the driver is left to the kernel."""

_log = logging.getLogger(__name__)


class StartError(Exception):
    """The exporter cannot start; the message says why, and what to do."""


class Exporter:
    """The exporter of one node.

    Without `source` it reads no GPUs, without `ports` no network ports; without `names` it asks the machine for users.
    """

    def __init__(
        self,
        config: Config,
        source: GpuReader | None,
        clock: Clock | None = None,
        names: RunNames | None = None,
        ports: PortReader | None = None,
    ) -> None:
        self._clock = clock or Clock()
        self._source: GpuReader = source or NoGpus()
        self._shown_gpus = ShownGpus(config, self._source, self._clock)
        self._shown_ports = None if ports is None else ShownPorts(ports, self._clock.monotonic)
        self._rank_series = config.rank_series
        self._table = RankTable(config.limits, self._clock, self._source, names or RunNames(config.run_owner))
        self._table.site_limits = config.site_limits
        self._shown_ranks = ShownRanks(self._table)
        self._listener = Listener(config.socket, config.socket_mode, config.limits, self._clock, self._table)
        self._keeper = None if config.state_file is None else StateKeeper(self._table, StateFile(config.state_file))
        self._most_series = config.limits.series
        self._loop_lag = RecentPeak(self._clock.monotonic)
        self._sections: Sections | None = None
        self._settings = dict(config.settings)
        self._ticks = 0
        self._next_tick: asyncio.TimerHandle | None = None
        self._scrapes = ScrapeTimes()
        self._lines = OncePerMinute(_log, self._clock.monotonic)
        pages = Pages(
            samples=self._scrape,
            status_page=self._status_page,
            api_node=self.api_node,
            ready=self._ready,
            generation=lambda: self._ticks,
            share_of=lambda uid: self._table.shares.of(uid) if self._table.has_run_of(uid) else None,
        )
        self._evidence = Evidence(
            self._table, self._clock, node_name(), peers=config.blackbox_peers, ras=config.blackbox_ras
        )
        self._server = Server(
            *config.listen_address,
            pages,
            most=config.web_max_requests,
            web_config=config.web_config,
            readers=config.web_readers,
            names=(node_name(), socket.gethostname()),
            inherited=inherited_sockets if config.web_systemd_socket else None,
            routes=self._evidence.routes,
        )
        self._web_socket, self._socket_mode = config.web_socket, config.socket_mode
        self._service_manager = ServiceManager()
        self._ranks_failed = False
        self._withheld: Counter[int] = Counter()
        """Series of each user that the last page had no room for."""

    @property
    def table(self) -> RankTable:
        """The ranks of this node; replays feed it without a socket."""
        return self._table

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; raise StartError if the address or the socket is not available."""
        try:
            # The address first: a second exporter must not touch the socket of the first one.
            try:
                address = await self._server.open()
            except NoSocketError as error:
                raise StartError(f"web.systemd-socket: {error}") from error
            except OSError as error:
                raise StartError(f"web.listen-address: {(error.strerror or str(error)).lower()}") from error
            try:
                await self._listener.open()
            except SocketPathError as error:
                raise StartError(str(error)) from error
            if self._web_socket is not None:
                try:
                    self._server.open_for_users(self._web_socket, self._socket_mode)
                except SocketPathError as error:
                    raise StartError(f"web.{error}") from error
            if self._keeper is not None:
                self._keeper.restore()  # the socket is ours, so no other exporter writes the file
            for shown in ("gpu", "rank"):
                if self._settings.get(f"{shown}.detail"):
                    _log.warning(
                        "%s.detail is deprecated and goes with the next release: use %s.series=all", shown, shown
                    )
            _log.info("serving", extra={"address": address})
            self._service_manager.ready()
            await self._work(stop)
        finally:
            self._service_manager.stopping()
            await self._listener.close()
            await self._server.close()
            await self._evidence.close()

    def reload(self, config: Config) -> None:
        """Apply the settings that can change while running; log those that cannot."""
        changed = {name for name, value in config.settings.items() if self._settings.get(name) != value}
        if waiting := sorted(changed - LIVE):
            _log.warning("these settings need a restart", extra={"settings": ", ".join(waiting)})
        self._server.reload(config.web_max_requests, config.web_config, config.web_readers)
        logging.getLogger().setLevel(config.log_level.upper())
        self._rank_series = config.rank_series
        self._table.site_limits = config.site_limits
        self._settings.update((name, config.settings[name]) for name in changed & LIVE)
        _log.info("configuration reloaded", extra={"changed": ", ".join(sorted(changed & LIVE)) or "nothing"})

    async def _work(self, stop: asyncio.Event) -> None:
        reading = asyncio.create_task(self._read_gpus())
        self._tick_and_repeat(self._clock.monotonic())
        try:
            await stop.wait()
            await self._show_last_ends()
        finally:
            if self._next_tick is not None:
                self._next_tick.cancel()
            if self._keeper is not None:
                await self._keeper.close()
            reading.cancel()
            await asyncio.wait({reading}, timeout=LAST_WAIT_SECONDS)

    async def _show_last_ends(self) -> None:
        """Wait for the next scrape if ranks have ended since the last one, as in a pod that ends with them.

        What is never scraped of a run that has finished looks like one that nobody watches any more.
        """
        ends = [rank.ended for rank in self._table.ranks() if rank.ended is not None]
        last = self._clock.monotonic() + self._scrapes.seconds_left(self._clock.monotonic())
        while ends and not self._scrapes.has_shown(max(ends)) and self._clock.monotonic() < last:
            await asyncio.sleep(LOOK_SECONDS)

    def _tick_and_repeat(self, due: float) -> None:
        now = self._clock.monotonic()
        self._loop_lag.note(now - due)
        try:
            self._tick()
        except Exception as error:  # noqa: BLE001 - a bug in one tick must not end the exporter
            self._lines.warning("tick failed", error)
        loop = asyncio.get_running_loop()
        self._next_tick = loop.call_later(TICK_SECONDS, self._tick_and_repeat, now + TICK_SECONDS)

    def _tick(self) -> None:
        self._ticks += 1
        self._service_manager.alive()
        self._server.tick()
        self._listener.tick()
        if self._keeper is not None:
            self._keeper.tick()
        self._table.tick()
        self.look_at_hardware()
        for uid in self._withheld:
            self._table.shares.exceeded(uid, "series")

    def look_at_hardware(self) -> None:
        """Note what conclusions about GPUs and network ports rest on; replays do it on their own clock."""
        self._shown_gpus.look()
        if self._shown_ports is not None:
            self._shown_ports.look()

    async def _read_gpus(self) -> None:
        try:
            await self._source.run()
        except Exception:  # noqa: BLE001 - whatever fails on the GPU side, ranks must still be shown
            _log.exception("GPU readings ended")

    def _scrape(self) -> list[Sample | HistogramSample]:
        self._scrapes.note(self._clock.monotonic())
        return self.samples()

    def samples(self) -> list[Sample | HistogramSample]:
        """Return everything that the exporter shows; if one part fails, the others are still shown."""
        return [
            *self._shown_gpus.samples(),
            *self._port_samples(),
            *self._rank_samples(),
            *self._listener.samples(),
            *self._server.samples(),
            Sample(catalog.EXPORTER_INFO, (__version__, platform.python_version()), 1),
            Sample(catalog.EXPORTER_TIME, (), self._clock.wall()),
            *process_samples(),
        ]

    def api_node(self, may_read: MayRead = lambda _: True) -> str:
        """Return what `/api/node` answers."""
        return self._answer(may_read).as_json()

    def _port_samples(self) -> Iterable[Sample]:
        return () if self._shown_ports is None else self._shown_ports.samples()

    def _rank_samples(self) -> list[Sample | HistogramSample]:
        start = time.perf_counter()
        samples: list[Sample | HistogramSample] = []
        try:
            samples, self._withheld = fit(list(self._shown_ranks.blocks(self._rank_series)), self._most_series)
            on_gpus = list(self._shown_ranks.on_gpus())
            samples += [
                Sample(catalog.SERIES_WITHHELD, (), self._withheld.total()),
                *on_gpus,
                *self._shown_gpus.clocks(on_gpus),
                *self._shown_ranks.counts(),
            ]
        except Exception:  # noqa: BLE001 - a bug in the handling of ranks must not hide the GPUs
            if not self._ranks_failed:
                _log.exception("ranks cannot be shown")
            self._ranks_failed = True
        else:
            self._ranks_failed = False
        if self._ranks_failed:
            samples.append(Sample(catalog.COLLECTOR_UNAVAILABLE, ("ranks", "error"), 1))
        return [
            *samples,
            Sample(catalog.COLLECTOR_SUCCESS, ("ranks",), not self._ranks_failed),
            Sample(catalog.COLLECTOR_DURATION, ("ranks",), time.perf_counter() - start),
            Sample(catalog.COLLECTOR_AGE, ("ranks",), 0),  # frames are applied as they arrive
            Sample(catalog.LOOP_LAG, (), self._loop_lag.read()),
        ]

    def _status_page(self, may_read: MayRead = lambda _: True) -> str:
        from tachograph.node.status_page.page import Sections, status_page  # late: see above

        self._sections = self._sections or Sections(self._clock)
        refused = {reason: count for reason, count in self._table.rejected.items() if count}
        dropped = {reason: count for reason, count in self._table.dropped.items() if count}
        health = {
            "State": self._ready()[1].strip(),
            "Readings": self._shown_gpus.collectors_in_words(),
            "Socket": str(self._listener.path),
            "Frames taken": f"{self._table.frames:,}",
            "Frames refused": ", ".join(f"{count:,} {reason}" for reason, count in refused.items()) or "none",
            "Series dropped": ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "none",
        }
        return status_page(self._answer(may_read), self._table, health, self._sections)

    def _answer(self, may_read: MayRead) -> NodeAnswer:
        from tachograph.node.api.answer import NodeAnswer  # late: see above

        gpus, snapshot = self._source.gpus(), self._shown_gpus.snapshot()
        ports = self._port_samples()
        return NodeAnswer(node_name(), self._table, gpus, snapshot, self._clock, ports=ports, may_read=may_read)

    def _ready(self) -> tuple[bool, str]:
        if not self._listener.is_open:
            return False, "not ready: the socket of the ranks is not open yet\n"
        if not self._listener.is_reachable:
            fault = self._listener.fault or f"{self._listener.path} is gone or not ours"
            return False, f"not ready: {fault}; it is opened again as soon as that is possible\n"
        return True, f"ready: ranks can connect; {self._shown_gpus.state()}\n"


def run_exporter(config: Config, arguments: Sequence[str]) -> int:
    """Run the exporter until SIGTERM or SIGINT; return its exit status: 0, or 1 if it cannot start."""
    log.set_up(config.log_level)
    raise_descriptor_limit()
    try:
        asyncio.run(_serve(config, arguments))
    except StartError as error:
        sys.stderr.write(f"tachograph exporter: {error}\n")
        return 1
    return 0


def raise_descriptor_limit() -> None:
    """Raise the soft limit on file descriptors as far as allowed, up to what all connection limits could use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _serve(config: Config, arguments: Sequence[str]) -> None:
    source: GpuReader | None = None
    if config.gpu_enabled:
        from tachograph.node.gpu.source import GpuSource

        source = GpuSource(
            interval=config.gpu_interval, kmsg=str(config.gpu_kmsg or ""), detail=config.gpu_series == ALL
        )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(quiet_loop(OncePerMinute(_log, time.monotonic)))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock = Clock()
    ports = None if config.nic_sysfs is None else SysfsPorts(config.nic_sysfs, clock.monotonic)
    exporter = Exporter(config, source, clock, ports=ports)
    loop.add_signal_handler(signal.SIGHUP, _reload, exporter, arguments)
    gc.freeze()  # what is loaded by now stays, so the garbage collector need not visit it again
    await exporter.run(stop)
    _log.info("stopped")


def _reload(exporter: Exporter, arguments: Sequence[str]) -> None:
    """Read the configuration again; a faulty one changes nothing."""
    try:
        exporter.reload(read_config(arguments))
    except ConfigError as error:
        for fault in error.faults:
            _log.error("configuration not reloaded", extra={"fault": fault})
