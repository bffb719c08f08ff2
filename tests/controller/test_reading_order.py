"""The page "From a dead master to the next" in docs/concepts/architecture.md: its functions exist, are few, and call each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "architecture.md"
ROW = re.compile(r"^\| (?P<number>\d+) \| `(?P<function>[\w.]+)`.*\| `(?P<file>[\w/.]+)` \|$", re.MULTILINE)
MOST = 15


def rows() -> list[tuple[str, Path]]:
    section = PAGE.read_text(encoding="utf-8").partition("### From a dead master to the next")[2].partition("\n## ")[0]
    found = list(ROW.finditer(section))
    assert [int(row["number"]) for row in found] == list(range(1, len(found) + 1))
    homes = (ROOT, ROOT / "operator" / "brokergroup_operator")
    return [
        (row["function"], next(home / row["file"] for home in homes if (home / row["file"]).exists())) for row in found
    ]


def defined(file: Path) -> set[str]:
    """Functions, and methods by the name of their class."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return names | {f"{one.name}.{node.name}" for one in classes for node in one.body if isinstance(node, kinds)}


def called(file: Path) -> set[str]:
    """The names of all functions and methods that are called in this file."""
    calls = (node.func for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return {
        func.attr if isinstance(func, ast.Attribute) else func.id
        for func in calls
        if isinstance(func, ast.Attribute | ast.Name)
    }


def test_the_way_from_a_dead_master_to_the_next_is_as_the_page_says() -> None:
    way = rows()
    assert 10 <= len(way) <= MOST
    for number, (function, file) in enumerate(way):
        assert function in defined(file), f"{file.name} has no {function}"
        opened = {earlier for _, earlier in way[:number]}
        name = function.rpartition(".")[2]
        assert not opened or any(name in called(one) for one in opened), f"{function} is called from no file before it"


def test_one_module_tells_brokers_of_roles() -> None:
    """104, 1008 and 906: their order is decided in `controller_core/change.py`, and nobody goes past it."""
    controller = ROOT / "operator" / "brokergroup_operator" / "controller"
    callers = {
        file.relative_to(controller).as_posix()
        for file in controller.rglob("*.py")
        if called(file) & {"change_role", "push_ha_address", "unregister"}
    }
    assert callers == {"change/executor.py"}
