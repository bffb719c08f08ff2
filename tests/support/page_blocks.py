"""Fenced blocks of a page: which are commands, and what their marker says runs them.

A block without a language is commands. On the line before it stands, unseen by readers, one of

    <!-- run: WHAT -->          a test of `tests/real` runs it, as WHAT says; `…, exit 0 or 1` where both are right
    <!-- test-node: NAME -->    `make test-node` runs it on two real nodes
    <!-- not run: WHY -->       nothing does, and why not

A block with a language is no command (yaml, json, text, ...); marked, a manifest is applied.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Their commands for a cluster come after the quick start's, in the cluster that is there then.
IN_THE_SAME_CLUSTER = ["docs/tasks/clusters.md"]
# Whose commands `tests/real/test_page_commands.py` runs, in this order, in one sandbox.
IN_ONE_SANDBOX = [
    "docs/start/connect-clients.md",
    "docs/tasks/operations.md",
    "docs/tasks/upgrade.md",
    "docs/tasks/delete.md",
]
_FENCED = re.compile(
    r"^(?:<!-- (?P<how>run|test-node|not run): (?P<what>[^\n]+?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_LONELY = re.compile(r"^<!-- (?:run|test-node|not run): [^\n]*\n(?!```)", re.MULTILINE)


class PageBlock(NamedTuple):
    """`how` is None where no marker stands before it."""

    how: str | None
    what: str
    language: str
    text: str

    @property
    def is_commands(self) -> bool:
        return not self.language

    @property
    def commands(self) -> str:
        """What a person types: the lines after a prompt, or all where none has one."""
        prompted = [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]
        return "\n".join(prompted) + "\n" if prompted else self.text


def page_blocks(page: str) -> list[PageBlock]:
    """All of them, in the page's order. ValueError where a marker has no block of its own, as the first of two before one."""
    if lonely := _LONELY.search(page):
        raise ValueError(f"{lonely[0].strip()}: expected a block on the next line")
    return [PageBlock(one["how"], one["what"] or "", one["language"], one["text"]) for one in _FENCED.finditer(page)]
