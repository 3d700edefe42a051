"""The README is for a newcomer with ten minutes: short, and in the order of the questions."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
WORDS = 700


def words(text: str) -> int:
    """Return how many words a person reads: not code, the addresses of links, and what stands in for pictures."""
    for left_out in (r"```.*?```", r"!\[.*?\]\(.*?\)", r"(?<=\])\([^)]*\)"):
        text = re.sub(left_out, "", text, flags=re.DOTALL)
    return sum(bool(re.search(r"\w", word)) for word in re.split(r"[\s|]+", text))


def test_it_is_short() -> None:
    """What does not fit has a page below docs/."""
    assert words(README) <= WORDS


def test_words_are_counted() -> None:
    """Each once, whatever it is marked with."""
    assert words("# Two **words**\n\n```\nno word\n```\n| three | more – [words](docs/a.md) |\n![no](x.png)\n") == 5


def test_it_answers_in_the_order_of_the_questions() -> None:
    """What is it, can I try it, my loop, my nodes, what do I get, what else is there, what does it cost, what not."""
    assert re.findall(r"^## (.+)$", README, re.MULTILINE) == [
        "Try it",
        "Your loop",
        "Your nodes",
        "What you get",
        "When to use something else",
        "What it costs",
        "Limits",
        "Documentation",
    ]
    head = README.partition("## ")[0]
    assert head.index("> Run ") < head.index("![") < head.index("**Status**")


def test_a_laptop_takes_three_commands() -> None:
    """And what the last of them prints is shown."""
    laptop = re.search(r"## Try it\n.*?```\n(.*?)```", README, re.DOTALL)
    assert laptop
    commands = [line for line in laptop[1].splitlines() if line.startswith("$ ")]
    assert len(commands) == 3
    assert laptop[1].rpartition(commands[-1])[2].count("\ntachograph run: ") >= 2
