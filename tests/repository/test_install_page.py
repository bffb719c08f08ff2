"""docs/install.md: every block of commands is run by `make test-node`, or says why not; and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```", re.MULTILINE)
BLOCK = re.compile(
    r"^<!-- (?P<how>test-node|not run): (?P<what>[^\n]+?) -->\n```\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


def test_every_block_of_commands_is_marked() -> None:
    marked = list(BLOCK.finditer(PAGE))
    assert 2 * len(marked) == len(FENCE.findall(PAGE))
    names = [block["what"] for block in marked if block["how"] == "test-node"]
    assert names == ["install", "first-group", "plugin", "upgrade", "uninstall", "release"]


def test_every_file_that_a_command_names_is_there() -> None:
    text = "".join(block["text"] for block in BLOCK.finditer(PAGE))
    named = re.findall(r"(?<!\S)(?:examples|charts)/[\w./-]+", text)
    assert "examples/quickstart.yaml" in named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_verb_that_a_page_names_is_one() -> None:
    from brokergroup_operator.kubectl.main import verb_names

    assert set(re.findall(r"kubectl brokergroup (\w+)", PAGE)) <= set(verb_names())
