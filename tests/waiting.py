"""The pauses of a test that waits for something: what it looks at may take longer to tell than to happen."""

import time


def pause(since: float, least: float = 0.01, most: float = 0.1) -> None:
    """Sleep before the next look: a tenth of the seconds since `since`, of the monotonic clock, within bounds."""
    time.sleep(min(most, max(least, (time.monotonic() - since) / 10)))
