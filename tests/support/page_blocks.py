"""Fenced blocks of a page: the commands among them, and the test that runs each by its marker.

A block without a language has commands. The line before it is one of these markers, invisible to readers:

    <!-- run: WHAT -->          a test of `tests/real` runs it, as WHAT says; `…, exit 0 or 1` where both are right
    <!-- test-node: NAME -->    `make test-node` runs it on two real nodes; of README `make helm-demo`, of security.md `make e2e`
    <!-- not run: WHY -->       nothing does, and why not

A block with a language has no commands (yaml, json, text, ...); a manifest with a marker is applied.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Their cluster commands run after the quick start's, in its cluster.
IN_THE_SAME_CLUSTER = ["docs/tasks/clusters.md"]
# Pages whose commands `tests/real/test_page_commands.py` runs, in this order, in one sandbox.
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
    """One block; `how` is None without a marker."""

    how: str | None
    what: str
    language: str
    text: str

    @property
    def is_commands(self) -> bool:
        return not self.language

    @property
    def commands(self) -> str:
        """Return the lines to type: those with a prompt, or all if none has one."""
        prompted = [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]
        return "\n".join(prompted) + "\n" if prompted else self.text


def page_blocks(page: str) -> list[PageBlock]:
    """Return all blocks in the page's order. ValueError if a marker has no block, like the first of two before one."""
    if lonely := _LONELY.search(page):
        raise ValueError(f"{lonely[0].strip()}: expected a block on the next line")
    return [PageBlock(one["how"], one["what"] or "", one["language"], one["text"]) for one in _FENCED.finditer(page)]
