"""Makes text from other sources safe to show to anybody, on a page, in mail and in a chat."""

from __future__ import annotations

import re

LONGEST_PLAIN = 160

_ADDRESS = re.compile(r"\b(?:0x)?[0-9a-f]{12,}\b")
"""Where a process or the kernel has its memory is for nobody who may not read the log itself."""

_UNSAFE = re.compile(r"\\x[0-9a-f]{2}|[^A-Za-z0-9 .,:;/()\[\]#=+!%'_-]")
"""Every character that may have a meaning in a chat or in HTML."""

_DOMAIN = re.compile(
    r"(?i)(?<![a-z0-9.-])(?:[a-z0-9-]+\.)+(?:[a-z]{2,24}(?=/)|(?:ai|app|biz|click|cn|co|com|de|dev|eu|example|gg|icu|in|info|io"
    r"|link|ly|me|net|online|org|ru|site|top|uk|us|xyz)\b)"
)
"""What a chat or mail program makes a link of, also without a scheme."""


def plain(text: str) -> str:
    """Return a text as it may be shown to anybody: plain characters, no addresses or domains, LONGEST_PLAIN at most."""
    shown = _UNSAFE.sub("?", _ADDRESS.sub("?", text[: 4 * LONGEST_PLAIN])).rstrip(" .")
    shown = _DOMAIN.sub(lambda found: found[0].replace(".", "[.]"), shown)
    return shown if len(shown) <= LONGEST_PLAIN else shown[: LONGEST_PLAIN - 3] + "..."
