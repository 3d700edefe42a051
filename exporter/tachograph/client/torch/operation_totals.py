"""Totals of one kind of collective."""

from __future__ import annotations


class OperationTotals:
    """Totals of one operation as counted by one writer; `wait` and `seconds` are None where they are not measured.

    `timed_bytes` is the payload of what `seconds` is the length of.
    """

    __slots__ = ("bytes", "failures", "operations", "seconds", "timed_bytes", "wait")

    def __init__(self, wait: float | None = 0.0, seconds: float | None = 0.0) -> None:
        self.operations = 0
        self.bytes = 0
        self.failures = 0
        self.wait = wait
        self.seconds = seconds
        self.timed_bytes = 0
