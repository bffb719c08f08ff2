"""Runs docs/tasks/install.md's blocks of commands unchanged, in a shell with the page's prerequisites, like a new user.

A block is marked in the page's source, `<!-- test-node: NAME -->` or `<!-- not run: why -->` on the line before it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.node.cluster import say
from tests.node.images import NEXT_TAG
from tests.node.kubectl import environment, run_commands
from tests.node.places import REPOSITORY
from tests.support.page_blocks import page_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = REPOSITORY / "docs" / "tasks" / "install.md"
BLOCK_SECONDS = 400.0
# By which our image is on the nodes: a registry's part of the name, as the page's commands put it in front.
REGISTRY = "docker.io/library"


class Block(NamedTuple):
    """Commands of the page; `what` is its name, or why it is not run."""

    what: str
    text: str
    is_run: bool


def blocks_of(page: str) -> list[Block]:
    """Return those that are marked, in the page's order."""
    return [Block(one.what, one.text, one.how == "test-node") for one in page_blocks(page) if one.how is not None]


class Newcomer:
    """A shell in the checkout, with a home of its own; `kubectl brokergroup` is the environment's until the page installs one."""

    def __init__(self, home: Path) -> None:
        self._blocks = {one.what: one.text for one in blocks_of(PAGE.read_text(encoding="utf-8")) if one.is_run}
        plugin = REPOSITORY / ".venv" / "bin"
        path = os.pathsep.join([str(home / ".local" / "bin"), environment()["PATH"], str(plugin)])
        self._variables = {"HOME": str(home), "PATH": path, "REGISTRY": REGISTRY, "TAG": NEXT_TAG}

    def run(self, name: str) -> None:
        """Raises NodeError with the block and what it printed, where a command of it fails."""
        say(f"  install.md: {name}")
        run_commands(self._blocks[name], f"install.md: {name}", variables=self._variables, seconds=BLOCK_SECONDS)


def follow(steps: Iterable[str]) -> None:
    """The page's blocks in this order, as one user with an empty home."""
    with tempfile.TemporaryDirectory(prefix="newcomer-") as home:
        newcomer = Newcomer(Path(home))
        for step in steps:
            newcomer.run(step)
