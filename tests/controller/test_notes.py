"""Who writes what of a group: its parts have one owner each, and no other module sets a field of the group or of a part."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from brokergroup_operator import controller
from brokergroup_operator.controller.group import notes

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = Path(controller.__file__).parent
# How the group names its parts, and the classes whose docstrings name their owners.
PARTS = {
    "links": notes.LinkNotes,
    "unheard": notes.UnheardNotes,
    "holdings": notes.HoldingsNotes,
    "silence": notes.SilenceNotes,
    "waking": notes.WakingNotes,
    "recovery": notes.ActingNotes,
}
OWNED = re.compile(r"Written by `([a-z_/]+\.py)`")


def owner_of(part: str) -> str:
    found = OWNED.search(" ".join((PARTS[part].__doc__ or "").split()))
    assert found is not None, f"{PARTS[part].__name__} names no owner"
    return found[1]


def assignments() -> Iterator[tuple[str, str]]:
    """File and target of each assignment to a field of a group, or of a part of one, outside the group's own class."""
    for file in sorted(HOME.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else targets
            flat = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
            for target in flat:
                words = ast.unparse(target).split(".")
                if isinstance(target, ast.Attribute) and "group" in words[:-1]:
                    yield file.relative_to(HOME).as_posix(), ".".join(words[words.index("group") :])


def test_each_part_of_a_group_is_written_by_its_owner_alone() -> None:
    found = {(where, target) for where, target in assignments() if target.count(".") > 1}
    assert {(owner_of(target.split(".")[1]), target) for _, target in found} == found
    assert {target.split(".")[1] for _, target in found} == PARTS.keys(), "a part that its owner never writes"


def test_no_module_sets_a_field_of_a_group() -> None:
    assert [(where, target) for where, target in assignments() if target.count(".") == 1] == []
