"""Xids and other NVML events of the fake node: who gets them, when, and how long a wait takes."""

from __future__ import annotations

from typing import Any

import pytest

XID, ECC, TIMEOUT, NO_PERMISSION, NOT_SUPPORTED = 0x8, 0x1, 10, 4, 3


def test_an_event_reaches_every_set_of_every_process(fake: Any, asked: Any) -> None:
    """Two sets in one process and one in another each get it once, in order, with its GPU and number."""
    one, other = asked(), asked()
    one(f"[watch('a', index, {XID}) for index in range(8)], watch('b', 5, {XID})")
    other(f"watch('a', 5, {XID})")
    fake.queue_xid(5, 79)
    fake.queue_xid(5, 48)
    for ask, name in ((one, "a"), (one, "b"), (other, "a")):
        assert [ask(f"event({name!r}, 2000)") for _ in range(2)] == [[5, XID, 79], [5, XID, 48]]
        assert ask.code(f"event({name!r}, 0)") == TIMEOUT


def test_a_set_gets_what_it_is_registered_for(fake: Any, ask: Any) -> None:
    """It does not get another GPU's event, or one of another type."""
    ask(f"watch('a', 2, {XID})")
    fake.queue_xid(3, 79)
    fake.queue_event(2, ECC, 1)
    fake.queue_xid(2, 31)
    assert ask("event('a', 2000)") == [2, XID, 31]
    assert ask.code("event('a', 0)") == TIMEOUT


def test_events_before_the_registration_are_lost(fake: Any, ask: Any) -> None:
    """A set gets events from its registration for that GPU on, as with the driver."""
    ask(f"watch('a', 0, {XID})")
    fake.queue_xid(1, 79)
    ask(f"watch('a', 1, {XID})")
    fake.queue_xid(0, 13)
    assert ask("event('a', 2000)") == [0, XID, 13]
    assert ask.code("event('a', 0)") == TIMEOUT


def test_a_burst_beyond_the_ring_keeps_the_latest(fake: Any, ask: Any, build: Any) -> None:
    """A set that has not been read for long continues with the oldest event that is still stored."""
    ask(f"watch('a', 0, {XID})")
    for xid in range(build.EVENTS + 10):
        fake.queue_xid(0, xid)
    read = ask(f"[event('a', 0)[2] for _ in range({build.EVENTS})]")
    assert read == list(range(10, build.EVENTS + 10))
    assert ask.code("event('a', 0)") == TIMEOUT


def test_a_wait_is_as_long_as_it_is_told(fake: Any, ask: Any) -> None:
    """Without an event, a wait times out; with one, it returns that."""
    ask(f"watch('a', 0, {XID})")
    seconds, answer = ask("""timed("event('a', 150)")""")
    assert answer == {"error": TIMEOUT}
    assert seconds >= 0.15
    ask("""begin('waiting', "timed(\\"event('a', 20000)\\")")""")
    fake.queue_xid(0, 94)
    _, answer = ask.later("waiting")["value"]
    assert answer == {"value": [0, XID, 94]}


@pytest.mark.parametrize("call", ["register_events", "event_wait"])
def test_events_may_be_refused(fake: Any, ask: Any, call: str) -> None:
    """A container that may not listen gets an error from the registration or from the wait."""
    fake.fail(call, NO_PERMISSION)
    codes = [ask.code(f"watch('a', 0, {XID})"), ask.code("event('a', 0)")]
    assert codes == ([NO_PERMISSION, TIMEOUT] if call == "register_events" else [0, NO_PERMISSION])


def test_a_type_the_gpu_does_not_report_is_not_supported(fake: Any, ask: Any) -> None:
    """An older GPU supports fewer events, lists them, and refuses the rest."""
    fake.gpus[0].event_types = XID
    assert ask("nvmlDeviceGetSupportedEventTypes(gpu(0))") == XID
    assert ask.code(f"watch('a', 0, {XID | ECC})") == NOT_SUPPORTED
    assert ask.code(f"watch('a', 0, {XID})") == 0
