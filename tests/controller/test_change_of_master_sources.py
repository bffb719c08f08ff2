"""What the sources of a change of master hold to: the functions of the page "From a dead master to the next"
(docs/concepts/architecture.md) exist and call each other, one module sends roles, and one method changes the record.
"""

from __future__ import annotations

import ast
import functools
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


@functools.cache
def defined(file: Path) -> set[str]:
    """Return the file's functions, and its methods by class."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return names | {f"{one.name}.{node.name}" for one in classes for node in one.body if isinstance(node, kinds)}


@functools.cache
def called(file: Path) -> set[str]:
    """Return the names of all functions and methods that this file calls."""
    return calls_of(ast.parse(file.read_text(encoding="utf-8")))


def calls_of(tree: ast.AST) -> set[str]:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
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
    """Only the order that `controller_core/change.py` decides sends 104, 1008 and 906."""
    controller = ROOT / "operator" / "brokergroup_operator" / "controller"
    callers = {
        file.relative_to(controller).as_posix()
        for file in controller.rglob("*.py")
        if called(file) & {"change_role", "push_ha_address", "unregister"}
    }
    assert callers == {"change/executor.py"}


def test_a_record_changes_by_one_method() -> None:
    """Each commit of the plane is reached by `Group.decide`, and by no other public method."""
    controller = ROOT / "operator" / "brokergroup_operator" / "controller"
    group = controller / "group" / "group.py"
    assert [file for file in controller.rglob("*.py") if "commit" in called(file)] == [group]
    methods = [
        (node.name, calls_of(node))
        for node in ast.walk(ast.parse(group.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    reach = {"commit"}
    while found := {name for name, calls in methods if calls & (reach - {"decide"})} - reach:
        reach |= found
    assert {name for name in reach if not name.startswith("_")} == {"commit", "decide"}
