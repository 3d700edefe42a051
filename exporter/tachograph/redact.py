"""Removal of what looks like a secret from text that a program wrote for its own user. Standard library only."""

from __future__ import annotations

import re

REDACTED = "[redacted]"
LONGEST = 512
"""Characters that are checked, three times what a page shows; the rest is cut off."""

_WORDS = r"token|secret|passw(?:or)?d|passwd|pwd|passphrase|credentials?|api[-_ ]?key|access[-_ ]?key|private[-_ ]?key"
_VALUE = r"(?:\"[^\"]*\"?|'[^']*'?|[^\s,;&)\]}'\"]+)"

_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), REDACTED),
    # https://user:password@host: whatever stands before the @.
    (re.compile(r"(\w{2,20}://)[^\s/@'\"]+(?=@)"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?)(?:\w+\s+)?[^\s'\",;]+"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {REDACTED}"),
    # token=…, "hf_token": "…", --password …, AWS_SECRET_ACCESS_KEY=…
    (re.compile(rf"(?i)((?:{_WORDS})[\w-]{{0,32}}['\"]?\s{{0,4}}(?:=>|[:=])\s{{0,4}}){_VALUE}"), rf"\1{REDACTED}"),
    (re.compile(rf"(?i)(--?[\w-]{{0,32}}(?:{_WORDS})[\w-]{{0,32}}\s{{1,4}}){_VALUE}"), rf"\1{REDACTED}"),
    # Keys that say of themselves what they are: AWS, GitHub, Hugging Face, OpenAI and Anthropic, Slack, GitLab, Google.
    (re.compile(r"\b(?:AKIA|ASIA|AROA)[0-9A-Z]{12,}"), REDACTED),
    (
        re.compile(r"\b(?:gh[pousr]_|github_pat_|hf_|sk-|xox[abeoprs]-|glpat-|AIza|ya29\.|nvapi-|wandb_v1_)[\w.-]{6,}"),
        REDACTED,
    ),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), REDACTED),
    (re.compile(r"\b[0-9a-fA-F]{32,}\b"), REDACTED),
    # Base64 of 24 bytes and more: a path or a name of that length has no mix of digits and both cases in one word.
    (
        re.compile(r"(?<![\w+/=-])(?=[\w+/-]*[0-9])(?=[\w+/-]*[a-z])(?=[\w+/-]*[A-Z])[A-Za-z0-9+_-]{32,}={0,2}"),
        REDACTED,
    ),
)
"""Each pattern and its replacement, applied in order: an earlier one may remove the text that a later one matches."""

_MARKS = (
    "token", "secret", "passw", "pwd", "passphrase", "credential", "key", "://", "authorization", "bearer", "basic",
    "akia", "asia", "aroa", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_", "sk-", "xox", "glpat-",
    "aiza", "ya29.", "nvapi-", "wandb_v1_", "eyj",
)  # fmt: skip
_LONG = 32
"""Each pattern matches only where there is one of these marks, in any case, or a run of so many characters without a
slash. Looking for them first makes 100 µs a few, which counts for the paths of two hundred stacks."""


def redact(text: str) -> str:
    """Return the beginning of a text, with everything that looks like a password, key or token replaced."""
    text = text[:LONGEST]
    lower = text.lower()
    if not any(mark in lower for mark in _MARKS) and all(len(part) < _LONG for part in text.split("/")):
        return text
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text
