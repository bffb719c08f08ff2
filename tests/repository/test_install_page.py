"""docs/tasks/install.md: `make test-node` runs every block of commands, or the block has a reason; named files exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.node.install_page import blocks_of
from tests.node.without_operator import INSTALL_PAGE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tasks" / "install.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(PAGE)
FENCE = re.compile(r"^```", re.MULTILINE)


def test_every_block_of_commands_is_marked_and_run() -> None:
    assert 2 * len(BLOCKS) == len(FENCE.findall(PAGE))
    named = [block.what for block in BLOCKS if block.is_run]
    assert named == list(dict.fromkeys(INSTALL_PAGE)), "expected in this order, each by the node's check"


def test_every_file_that_a_command_names_is_there() -> None:
    text = "".join(block.text for block in BLOCKS)
    named = re.findall(r"(?<!\S)(?:examples|charts)/[\w./-]+", text)
    assert "examples/quickstart.yaml" in named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_verb_that_a_page_names_is_one() -> None:
    from brokergroup_operator.kubectl.main import verb_names

    assert set(re.findall(r"kubectl brokergroup (\w+)", PAGE)) <= set(verb_names())
