"""The reading commands of docs/runbooks, run unchanged on a group of the two nodes.

A page has three parts: what the alert means, a block of commands that only read, and what to do. The block is what is run.
"""

from __future__ import annotations

import os
import re

from tests.node.cluster import GROUPS_NAMESPACE, OPERATOR_NAMESPACE
from tests.node.kubectl import environment, run_commands
from tests.node.places import REPOSITORY

FOLDER = REPOSITORY / "docs" / "runbooks"
PARTS = ("What it means", "Look at this", "Do that")
_BLOCK = re.compile(r"^```\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def parts_of(page: str) -> dict[str, str]:
    """The text below each heading."""
    _, *parts = re.split(r"^## ", page, flags=re.MULTILINE)
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def commands_of(text: str) -> list[str]:
    """The lines of its blocks."""
    return [line for block in _BLOCK.finditer(text) for line in block["text"].splitlines()]


def filled(command: str, group: str) -> str:
    """The command for this group, with what a person would put in the place of the words in capitals."""
    here = {"NAMESPACE": GROUPS_NAMESPACE, "GROUP": group, "brokergroup-system": OPERATOR_NAMESPACE}
    return re.sub("|".join(here), lambda word: here[word[0]], command)


def look(alert: str, group: str) -> None:
    """Run what the page of this alert says to look at. Raises NodeError where a command fails."""
    part = parts_of((FOLDER / f"{alert}.md").read_text(encoding="utf-8"))["Look at this"]
    path = os.pathsep.join([environment()["PATH"], str(REPOSITORY / ".venv" / "bin")])
    for command in commands_of(part):
        run_commands(filled(command, group), f"{alert}: {command!r}", variables={"PATH": path})
