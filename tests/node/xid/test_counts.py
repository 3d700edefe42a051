"""Xids from the driver to the samples: two sources, one count."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.gpu import GPU_XID_ERRORS, GPU_XID_INFO, GPU_XID_NONFATAL, GPU_XID_TIMESTAMP
from tachograph.node.samples import GpuIdentity
from tachograph.node.xid.counts import (
    NAMING_SECONDS,
    PAUSE_SECONDS,
    RESTART_SECONDS,
    WINDOW_SECONDS,
    XidCounts,
    XidWatch,
)
from tachograph.node.xid.kmsg import KernelLog

BUS, OTHER = "0000:1b:00", "0000:3b:00"
UUID = "GPU-fa4e0000-0000-4000-8000-000000000000"
GPU = GpuIdentity("0", UUID, "made up")
NOT_SUPPORTED, UNKNOWN = 3, 999
Until = Callable[..., Any]


def seen(watch: XidWatch, gpu: GpuIdentity = GPU) -> dict[int, float]:
    """Number -> count of a GPU's Xids that happened."""
    rows = watch.rows([gpu])
    return {int(labels[2]): value for (metric, labels), value in rows if metric is GPU_XID_ERRORS and value}


def named(log: Any, uuid: str = UUID, bus: str = BUS) -> None:
    log.line(f"NVRM: GPU at PCI:{bus}: {uuid}")


def test_nothing_is_shown_before_an_xid() -> None:
    """A GPU without an Xid has no series of one, whether it pages or not: they would be a third of its budget."""
    assert XidWatch(None, "").rows([GPU, GpuIdentity("1", "", "")]) == []


def test_an_xid_in_the_log_is_counted_timed_and_explained(kernel_watch: Any, log: Any, until: Until) -> None:
    """Count, Unix time, what to do and what it means, of what happened alone."""
    began = time.time()
    kernel_watch.start()
    named(log)
    log.xid(79)
    log.xid(31)
    log.xid(9999)
    until(lambda: len(seen(kernel_watch)) == 3)
    rows = {(metric.name, labels[2]): (labels[3:], value) for (metric, labels), value in kernel_watch.rows([GPU])}
    assert rows["tachograph_gpu_xid_errors_total", "79"] == ((), 1)
    assert began - 1 < rows["tachograph_gpu_xid_timestamp_seconds", "79"][1] < time.time() + 1
    assert rows["tachograph_gpu_xid_info", "79"] == (("reboot", "the GPU does not answer on the PCIe bus any more"), 1)
    assert rows["tachograph_gpu_xid_info", "31"][0][0] == "application"
    assert rows["tachograph_gpu_xid_info", "9999"][0][0] == "unknown"
    assert {xid for _, xid in rows} == {"79", "31", "9999"}
    assert kernel_watch.trouble == ""


def test_history_is_told_and_only_its_end_counted(kernel_watch: Any, log: Any, until: Until) -> None:
    """At start the ring is read: each Xid with its true time, counted if it fell into the time of a restart."""
    named(log)
    began = time.time()
    log.xid(48, ago=86400)
    log.xid(64, ago=RESTART_SECONDS + 60)
    log.xid(79, ago=RESTART_SECONDS - 60)
    log.xid(95, ago=20)
    log.xid(95, ago=3)
    kernel_watch.start()
    until(lambda: seen(kernel_watch) == {79: 1, 95: 2})
    times = {
        int(labels[2]): value for (metric, labels), value in kernel_watch.rows([GPU]) if metric is GPU_XID_TIMESTAMP
    }
    ages = {48: 86400, 64: RESTART_SECONDS + 60, 79: RESTART_SECONDS - 60, 95: 3}
    passed = time.time() - began
    assert times == {xid: pytest.approx(began - age + passed / 2, abs=passed / 2 + 1) for xid, age in ages.items()}
    log.xid(64)
    until(lambda: seen(kernel_watch) == {64: 1, 79: 1, 95: 2})


def test_a_stamp_ahead_of_our_clock_is_now(kernel_watch: Any, log: Any, until: Until) -> None:
    """The kernel's clock runs apart from ours: no Xid is shown in the future."""
    began = time.time()
    named(log)
    log.xid(79, ago=-3600)
    kernel_watch.start()
    until(lambda: seen(kernel_watch) == {79: 1})
    (value,) = (value for (metric, _), value in kernel_watch.rows([GPU]) if metric is GPU_XID_TIMESTAMP)
    assert began - 1 < value < time.time() + 1


def test_noise_between_records_costs_nothing(kernel_watch: Any, log: Any, until: Until) -> None:
    """Malformed lines, switches, programs that write to the log and dictionaries are passed over."""
    kernel_watch.start()
    named(log)
    xid = "NVRM: Xid (PCI:0000:1b:00): 79, x\n"
    for noise in ("\n;\n,,,;NVRM: \n", "x" * 5000 + "\n", f"4,1,{10**24},-;{xid}", f"4,1;{xid}", f" {xid}", xid):
        log.raw(noise)
    log.line("NVRM: Xid (PCI:0000:1b:00): 79, written by a program", priority=12)
    log.line("nvidia-nvswitch0: SXid (PCI:0000:1b:00.0): 28006, Non-fatal")
    log.xid(62)
    until(lambda: seen(kernel_watch))
    assert seen(kernel_watch) == {62: 1}


def test_a_plain_file_can_stand_for_the_log(tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that grows is followed, and after each turn at it, for it is always ready, there is a pause."""
    path = tmp_path / "kmsg"
    path.write_text(f"6,1,1000000,-;NVRM: GPU at PCI:{BUS}: {UUID}\n")
    watch = XidWatch(None, str(path))
    turns: list[str] = []
    turn, pause = KernelLog.turn, watch._stop.wait
    monkeypatch.setattr(KernelLog, "turn", lambda log: turns.append("turn") or turn(log))
    monkeypatch.setattr(watch._stop, "wait", lambda seconds: turns.append(f"pause of {seconds} s") or pause(seconds))
    watch.start()
    until(lambda: len(turns) >= 8)
    assert turns[:8] == 4 * ["turn", f"pause of {PAUSE_SECONDS} s"]
    with path.open("a") as file:
        file.write(f"4,2,2000000,-;NVRM: Xid (PCI:{BUS}): 79, gone\n")
    until(lambda: seen(watch) == {79: 1})
    watch.close()


def test_a_gpu_that_was_gone_before_anybody_asked_is_found_out(kernel_watch: Any, log: Any, until: Until) -> None:
    """Xids of a bus id where no known GPU sits are kept, told in a note, and given to the GPU once it is known."""
    log.xid(79)
    kernel_watch.start()
    until(kernel_watch._counts.nameless)
    assert kernel_watch.notes == {}, "NVML may yet tell which GPU it is"
    kernel_watch._started -= NAMING_SECONDS
    notes = until(lambda: kernel_watch.notes)
    assert notes == {
        f"GPU at PCI {BUS}": "the driver lists no GPU there, but reported Xid 79 (the GPU does not answer on the PCIe "
        "bus any more)"
    }
    assert seen(kernel_watch) == {}
    named(log)
    until(lambda: seen(kernel_watch) == {79: 1})
    assert kernel_watch.notes == {}


def add(counts: XidCounts, *times: float, xid: int = 79, bus: str = BUS) -> None:
    for at in times:
        counts.add(bus, xid, at, 1e9 + at)


def test_a_burst_counts_once() -> None:
    """What follows within the window is the same event; other numbers and other GPUs are not."""
    counts = XidCounts()
    counts.name(BUS, UUID)
    counts.name(OTHER, "GPU-b")
    add(counts, 100, 100.001, 109.9)
    add(counts, 100.5, xid=48)
    add(counts, 100.5, bus=OTHER)
    assert counts.of(UUID) == {48: (1, 1e9 + 100.5), 79: (1, 1e9 + 109.9)}
    assert counts.of("GPU-b") == {79: (1, 1e9 + 100.5)}
    add(counts, 100 + WINDOW_SECONDS)
    assert counts.of(UUID)[79] == (2, 1e9 + 110)


def test_a_nonfatal_one_hides_no_fatal_one() -> None:
    """Within the window of a nonfatal one a fatal one counts, and in the same slot both are the same GPU's."""
    counts = XidCounts()
    counts.add(BUS, 145, 100, 1e9 + 100, nonfatal=True)
    counts.add(BUS, 145, 101, 1e9 + 101)
    assert counts.nameless() == {BUS: [145]}
    counts.name(BUS, UUID)
    assert counts.of(UUID) == {145: (1, 1e9 + 101)}
    assert counts.of(UUID, nonfatal=True) == {145: (1, 1e9 + 100)}


def test_a_storm_of_hours_keeps_counting_slowly() -> None:
    """A storm counts one event for each window: neither a million nor a single one."""
    counts = XidCounts()
    counts.name(BUS, UUID)
    add(counts, *(at / 10 for at in range(36000)))
    assert counts.of(UUID) == {79: (360, 1e9 + 3599.9)}


def test_a_clock_that_is_set_back_changes_no_count() -> None:
    """Events are told apart on the monotonic clock; the time shown is that of the last event, even if it is lower."""
    counts = XidCounts()
    counts.name(BUS, UUID)
    counts.add(BUS, 79, 100.0, 2e9)
    counts.add(BUS, 79, 200.0, 1e9)
    assert counts.of(UUID) == {79: (2, 1e9)}


def test_a_clock_that_is_set_dates_what_was_before_anew() -> None:
    """By the present clock of the day, with which it is compared; readings that differ a little change nothing."""
    counts = XidCounts()
    counts.name("b", "GPU-a")
    counts.add("b", 79, 50.0, 1050.0)
    counts.date_anew(1000.4)
    assert counts.of("GPU-a") == {79: (1, 1050.0)}
    counts.date_anew(4600.0)
    assert counts.of("GPU-a") == {79: (1, 4650.0)}


def test_a_late_report_of_the_same_event_moves_nothing_back() -> None:
    """A record read after a newer one neither counts again nor sets the time back."""
    counts = XidCounts()
    counts.name(BUS, UUID)
    add(counts, 100, 99.9, 95)
    assert counts.of(UUID) == {79: (1, 1e9 + 100)}


def test_a_board_that_was_exchanged_starts_at_zero() -> None:
    """What the old GPU in a slot had stays the old one's."""
    counts = XidCounts()
    add(counts, 100)
    assert counts.nameless() == {BUS: [79]}
    counts.name(BUS, UUID)
    counts.name(BUS, "GPU-new")
    add(counts, 101)
    assert counts.of(UUID) == {79: (1, 1e9 + 100)}
    assert counts.of("GPU-new") == {79: (1, 1e9 + 101)}
    assert counts.nameless() == {}


@pytest.mark.parametrize(("kmsg", "trouble"), [("", "no_driver"), ("/no/such/log", "no_driver")])
def test_with_neither_source_there_is_a_reason(kmsg: str, trouble: str, until: Until) -> None:
    """No driver and no log: the collector says what is missing first."""
    watch = XidWatch(None, kmsg)
    watch.start()
    until(lambda: watch._log_trouble != "starting")
    assert watch.trouble == trouble
    assert ("Xids from the kernel's log" in watch.notes) == bool(kmsg)
    watch.close()


def test_nvml_tells_of_an_xid(fake: Any, watch: Any, until: Until) -> None:
    """Without a kernel log NVML's events alone are counted, on the GPU they happened on, and other events are not."""
    running = watch(fake.environment())
    until(lambda: fake.called("register_events", 7))
    fake.queue_event(5, 0x10, 79)
    fake.queue_xid(5, 79)
    fake.queue_xid(5, 31)
    until(lambda: running.counts(5) == {31: 1, 79: 1})
    assert running.counts(0) == {}
    assert running.trouble() == ""
    assert running.notes() == {}


def test_a_quiet_driver_is_no_trouble(fake: Any, watch: Any, until: Until) -> None:
    """That no event comes for a while is no failure: the set is kept, and nothing is missed meanwhile."""
    running = watch(fake.environment())
    until(lambda: fake.called("register_events", 7) and running.trouble() == "")
    time.sleep(0.5)  # several waits of the watcher
    assert running.trouble() == ""
    assert fake.called("register_events", 7) == 1


def test_both_sources_count_once(fake: Any, watch: Any, log: Any, until: Until) -> None:
    """The log and NVML report the same event; one that only one of them has is counted too."""
    running = watch(fake.environment(), log.path)
    until(lambda: fake.called("register_events", 7))
    for _ in range(3):
        log.xid(79)
        fake.queue_xid(0, 79)
    log.xid(63)
    fake.queue_xid(0, 48)
    until(lambda: running.counts() == {48: 1, 63: 1, 79: 1})
    assert running.notes() == {}


NONFATAL = "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"
INJECTED = "RLW_SRC_TRACK Fatal XC0 i1 Link 00 (0x00000001 0x00000002 0x00000000 0x00000000)"
FATAL = "RLW_SRC_TRACK Fatal XC0 i0 Link 05 (0x04084507 0x00000001 0x00000000 0x00000000)"


@pytest.mark.parametrize("text", [NONFATAL, INJECTED])
def test_what_the_driver_calls_nonfatal_is_counted_apart(kernel_watch: Any, log: Any, until: Until, text: str) -> None:
    """No error, no time and no advice, which would page: a count of its own. A fatal one that follows has them all."""
    kernel_watch.start()
    named(log)
    log.line(f"NVRM: Xid (PCI:{BUS}): 145, {text}")
    (row,) = until(lambda: kernel_watch.rows([GPU]))
    assert row == ((GPU_XID_NONFATAL, ("0", UUID, "145")), 1)
    log.line(f"NVRM: Xid (PCI:{BUS}): 145, {FATAL}")
    until(lambda: seen(kernel_watch) == {145: 1})
    rows = {metric.name: (labels[2:], value) for (metric, labels), value in kernel_watch.rows([GPU])}
    assert rows[GPU_XID_TIMESTAMP.name][1] == pytest.approx(time.time(), abs=20)
    assert rows[GPU_XID_INFO.name] == (("145", "reset", "NVLink 5 fault in unit RLW"), 1)
    assert rows[GPU_XID_NONFATAL.name] == (("145",), 1)


def test_nvml_waits_for_the_logs_word(fake: Any, watch: Any, log: Any, until: Until) -> None:
    """An event has a number alone: what the log calls nonfatal is no error, whichever of the two comes first."""
    running = watch(fake.environment(), log.path)
    until(lambda: fake.called("register_events", 7))
    fake.queue_xid(0, 145)
    log.line(f"NVRM: Xid (PCI:{BUS}): 145, {NONFATAL}")
    log.line(f"NVRM: Xid (PCI:{BUS}): 149, {NONFATAL}")
    fake.queue_xid(0, 149)
    fake.queue_xid(0, 48)
    until(lambda: running.counts() == {48: 1})
    assert running.counts() == {48: 1}, "which came last, and was counted when the others could have been"
    assert running.nonfatal() == {145: 1, 149: 1}
    log.line(f"NVRM: Xid (PCI:{BUS}): 145, {FATAL}")
    fake.queue_xid(0, 145)
    until(lambda: running.counts() == {48: 1, 145: 1})


def test_without_the_log_an_event_is_taken_for_an_error(fake: Any, watch: Any, until: Until) -> None:
    """Where the log cannot be read nobody knows how bad an Xid is: it counts as one that may be fatal."""
    running = watch(fake.environment())
    until(lambda: fake.called("register_events", 7))
    fake.queue_xid(0, 145)
    until(lambda: running.counts() == {145: 1})


def test_a_gpu_that_fell_off_the_bus_is_still_known(fake: Any, watch: Any, log: Any, until: Until) -> None:
    """After Xid 79 the driver answers nothing about the GPU: its handle and its bus id lead to it all the same."""
    running = watch(fake.environment(), log.path)
    until(lambda: fake.called("register_events", 7))
    fake.unplug(0)
    fake.queue_xid(0, 79)
    until(lambda: running.counts() == {79: 1})
    log.xid(154)
    until(lambda: running.counts() == {79: 1, 154: 1})


def test_the_log_alone_serves_where_nvml_has_no_events(fake: Any, watch: Any, log: Any, until: Until) -> None:
    """NVML names the GPUs, the log tells the Xids; that events are missing is told, and is no trouble."""
    fake.fail("register_events", NOT_SUPPORTED)
    running = watch(fake.environment(), log.path)
    until(lambda: fake.called("register_events", 0))
    log.xid(79)
    until(lambda: running.counts() == {79: 1})
    assert running.trouble() == ""
    assert running.notes() == {"Xids from NVML": "Not Supported"}


def test_a_log_that_may_not_be_read(fake: Any, watch: Any, tmp_path: Path, until: Until) -> None:
    """Without permission for the log NVML's events do, and that is told; without both there is a reason."""
    path = tmp_path / "kmsg"
    path.touch(mode=0)
    running = watch(fake.environment(), path, unprivileged=True)
    until(lambda: fake.called("register_events", 7) and running.trouble() == "")
    ((subject, sentence),) = running.notes().items()
    assert subject == "Xids from the kernel's log"
    assert "Permission denied" in sentence
    fake.fail("register_events", NOT_SUPPORTED)
    running = watch(fake.environment(), path, unprivileged=True)
    until(lambda: running.trouble() == "no_permission")


def test_an_event_set_that_fails_is_made_anew(fake: Any, watch: Any, until: Until) -> None:
    """A failure of the wait is told, and ends with the fault; what was counted before stays."""
    running = watch(fake.environment())
    until(lambda: fake.called("register_events", 7))
    fake.queue_xid(0, 48)
    until(lambda: running.counts() == {48: 1})
    fake.fail("event_wait", UNKNOWN)
    until(lambda: running.trouble() == "error")
    fake.fail("event_wait", 0)
    until(lambda: running.trouble() == "")
    fake.queue_xid(0, 79)
    until(lambda: running.counts() == {48: 1, 79: 1})


def test_a_reinitialised_nvml_goes_on_counting(fake: Any, watch: Any, until: Until) -> None:
    """After the driver was reloaded events come again, and the counts go on where they were."""
    running = watch(fake.environment())
    until(lambda: fake.called("register_events", 7))
    fake.queue_xid(3, 95)
    until(lambda: running.counts(3) == {95: 1})
    before = fake.called("register_events", 7)
    running.reinitialise()
    until(lambda: fake.called("register_events", 7) > before)
    fake.queue_xid(3, 48)
    until(lambda: running.counts(3) == {48: 1, 95: 1})


def test_a_gpu_that_hangs_from_the_start_costs_its_own_events(fake: Any, watch: Any, log: Any, until: Until) -> None:
    """The others' events arrive, the log tells of the hung one too, and closing does not wait for it."""
    fake.hang(0)
    running = watch(fake.environment(), log.path)
    named(log)
    log.xid(119)
    until(lambda: running.counts() == {119: 1})
    until(lambda: fake.called("register_events", 7))
    fake.queue_xid(7, 79)
    until(lambda: running.counts(7) == {79: 1})
    assert running.trouble() == ""
    running.close()


def test_a_driver_that_hangs_is_a_reason(fake: Any, watch: Any, until: Until) -> None:
    """Where no GPU answers and there is no log, the collector says that the driver hangs."""
    fake.block(-1)
    running = watch(fake.environment())
    until(lambda: running.trouble() == "hung")
    assert running.notes() == {"Xids from NVML": "driver call does not return"}
    fake.block(0)
    until(lambda: running.trouble() == "")
