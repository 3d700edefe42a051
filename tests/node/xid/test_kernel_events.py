"""Events of the kernel: counted by kind, and shown as text that can harm nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.node import KERNEL_EVENT_KINDS, NODE_KERNEL_EVENTS, NODE_KERNEL_MESSAGE
from tachograph.node.samples import Row
from tachograph.node.xid.counts import RESTART_SECONDS, XidWatch
from tachograph.node.xid.kernel_events import (
    MOST_MESSAGES,
    MOST_OF_A_KIND,
    REPLACE_SECONDS,
    SHOWN_SECONDS,
    KernelEvents,
)
from tachograph.text.plain import LONGEST_PLAIN, plain

NFS = "nfs: server fs01 not responding, still trying"
OOM = "Memory cgroup out of memory: Killed process {} (python3) total-vm:1kB"


def counts(rows: list[Row]) -> dict[str, float]:
    return {labels[0]: value for (metric, labels), value in rows if metric is NODE_KERNEL_EVENTS and value}


def messages(rows: list[Row]) -> dict[str, float]:
    return {labels[1]: value for (metric, labels), value in rows if metric is NODE_KERNEL_MESSAGE}


def test_before_an_event_every_kind_is_zero() -> None:
    """Zero, not absent: the log is read, and nothing was in it."""
    assert KernelEvents().rows(0.0) == [((NODE_KERNEL_EVENTS, (kind,)), 0.0) for kind in KERNEL_EVENT_KINDS]


def test_each_message_counts_and_the_last_time_is_shown() -> None:
    """One that comes again is the same series, as old as its last."""
    events = KernelEvents()
    for at in (100.0, 110.0, 105.0):
        events.take(NFS, at, 110.0)
    events.take("nfs: server fs01 OK", 110.0, 110.0)
    assert counts(events.rows(111.0)) == {"nfs": 3}
    assert messages(events.rows(111.0)) == {NFS: 1.0}


def test_a_message_is_shown_for_two_minutes() -> None:
    """After them it is gone, and its count is not; one that is older when it is read is never shown."""
    events = KernelEvents()
    events.take(NFS, 100.0, 100.0)
    assert messages(events.rows(100.0 + SHOWN_SECONDS - 1)) == {NFS: SHOWN_SECONDS - 1}
    assert messages(events.rows(100.0 + SHOWN_SECONDS)) == {}
    events.take(NFS, 300.0, 300.0 + SHOWN_SECONDS, counts=False)
    assert messages(events.rows(300.0 + SHOWN_SECONDS)) == {}
    assert counts(events.rows(500.0)) == {"nfs": 1}


def test_a_storm_of_different_texts_is_counted_and_shown_slowly() -> None:
    """Two of a kind at most, a new one in the place of the older only when that has stood for a while."""
    events = KernelEvents()
    seen: set[str] = set()
    for second in range(600):
        for pid in range(10):
            events.take(OOM.format(second * 10 + pid), float(second), float(second))
        shown = messages(events.rows(float(second)))
        assert len(shown) == MOST_OF_A_KIND
        seen |= shown.keys()
    assert counts(events.rows(600.0)) == {"oom_kill": 6000}
    assert len(seen) <= MOST_OF_A_KIND * 600 / REPLACE_SECONDS
    assert min(messages(events.rows(600.0)).values()) <= REPLACE_SECONDS


def test_no_more_than_eight_are_shown() -> None:
    """Of all kinds together; the newest takes the oldest's place once that has stood for a while."""
    events = KernelEvents()
    texts = [NFS, NFS.replace("fs01", "fs02"), OOM.format(1), OOM.format(2)]
    texts += [f"EXT4-fs error (device sd{disk}): x" for disk in "ab"] + [
        f"I/O error, dev sd{d}, sector 1" for d in "ab"
    ]
    for at, text in enumerate(texts):
        events.take(text, float(at), float(at))
    late = "NVRM: RmInitAdapter failed! (0x26:0xffff:1227)"
    events.take(late, 9.0, 9.0)
    assert list(messages(events.rows(9.0))) == texts
    assert len(texts) == MOST_MESSAGES
    events.take(late, REPLACE_SECONDS, REPLACE_SECONDS)
    assert list(messages(events.rows(REPLACE_SECONDS))) == [*texts[1:], late]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (NFS, NFS),
        ("INFO: task a:7 blocked for more than 120 seconds.", "INFO: task a:7 blocked for more than 120 seconds"),
        (
            "NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x24)",
            "NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x24)",
        ),
        ("Killed process 1 (<!channel>)", "Killed process 1 (?!channel?)"),
        ("Killed process 1 (@everyone)", "Killed process 1 (?everyone)"),
        ('Killed process 1 ({{"a"}}\\x0a`b`)', "Killed process 1 (???a?????b?)"),
        ("Killed process 1 (a\x1b[2J\n\u202eb)", "Killed process 1 (a?[2J??b)"),
        (
            "a[7]: segfault at 7f5e3a0012f8 ip 000000000046 sp 00007ffd11 error 4 in x.so[7f5e3a000000+1000]",
            "a[7]: segfault at ? ip ? sp 00007ffd11 error 4 in x.so[?+1000]",
        ),
        ("x" * LONGEST_PLAIN, "x" * LONGEST_PLAIN),
        ("x" * 9000, "x" * (LONGEST_PLAIN - 3) + "..."),
    ],
)
def test_a_text_is_plain_and_bounded(text: str, shown: str) -> None:
    """Nothing that a chat, a page, a template or a terminal would act on, whatever a process calls itself."""
    assert plain(text) == shown


def test_events_come_from_the_log(kernel_watch: XidWatch, log: Any, until: Callable[..., Any]) -> None:
    """Counted beside Xids; of history what fell into a restart, shown what is of two minutes."""
    log.line(NFS, ago=RESTART_SECONDS + 60)
    log.line(OOM.format(1), ago=RESTART_SECONDS - 60)
    log.line(OOM.format(2), ago=60)
    log.line(NFS, priority=30)
    log.xid(79)
    assert kernel_watch.kernel_rows() == [], "not read yet"
    kernel_watch.start()
    until(lambda: counts(kernel_watch.kernel_rows()) == {"oom_kill": 2})
    shown = until(lambda: messages(kernel_watch.kernel_rows()))
    assert list(shown) == [OOM.format(2)]
    assert 59 < shown[OOM.format(2)] < 70
    log.line(NFS)
    until(lambda: counts(kernel_watch.kernel_rows()) == {"oom_kill": 2, "nfs": 1})
    assert messages(kernel_watch.kernel_rows())[NFS] < 10


def test_a_page_has_them(exporter_at: Callable[..., Any], log: Any) -> None:
    """From the log to /metrics, without a GPU or its driver: each kind's count, and the message; not a program's."""
    exporter = exporter_at(f"--gpu.kmsg={log.path}")
    log.line("Out of memory: Killed process 4242 (<!here>\\x0a) total-vm:1kB, UID:1000")
    log.line("nfs: server made-up not responding, still trying", priority=12)
    count = ("node_kernel_events_total", "oom_kill")
    exporter.eventually(lambda: exporter.scrape().value(count[0], kind=count[1]) == 1)
    scrape = exporter.scrape()
    text = "Out of memory: Killed process 4242 (?!here??) total-vm:1kB, UID:1000"
    age = scrape.value("node_kernel_message_age_seconds", kind="oom_kill", text=text)
    assert age is not None
    assert 0 <= age < SHOWN_SECONDS
    assert scrape.value(count[0], kind="nfs") == 0


def test_without_the_log_there_is_no_count(tmp_path: Path, until: Callable[..., Any]) -> None:
    """Absent, not zero: in a container without /dev/kmsg, or where it is switched off."""
    for kmsg in ("", str(tmp_path / "none")):
        watch = XidWatch(None, kmsg)
        watch.start()
        until(lambda watch=watch: watch._log_trouble == "not_supported")
        assert watch.kernel_rows() == []
        assert ("Xids from the kernel's log" in watch.notes) == bool(kmsg)
        watch.close()
