"""The modules that `docs/reference/replica.md` calls pure import nothing that does I/O, waits or reads a clock, nor do these."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rocketmq_replica

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(rocketmq_replica.__file__).parent
DOCUMENT = (PACKAGE.parent / "docs" / "reference" / "replica.md").read_text(encoding="utf-8")
# What a pure module may import of the standard library: values and their forms, no world. And msgspec, for structs.
ALLOWED = {
    "array",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "struct",
    "typing",
}
ALLOWED |= {"__future__", "msgspec"}
PURE_ELSEWHERE = {"codes", "errors", "message_record"}  # of rocketmq_remoting: bytes in, values out
WORLD = {"open", "print", "input", "exec", "eval", "__import__"}


def pure_modules() -> list[str]:
    """As the document lists them."""
    listed = re.search(r"^Pure, with bytes.*?: (.*?)\.\sTheir adapters", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert listed is not None, "docs/reference/replica.md says which modules are pure"
    return re.findall(r"`([\w/]+)`", listed[1])


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported when the module runs: not under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            if node.module in ("rocketmq_replica", "rocketmq_remoting"):
                yield from (f"{node.module}.{name.name}" for name in node.names)
            else:
                yield node.module
        else:
            yield from imports(node)


def parsed(name: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", pure_modules())
def test_a_pure_module_imports_pure_ones_only(name: str) -> None:
    pure = set(pure_modules())
    for module in imports(parsed(name)):
        package, _, rest = module.partition(".")
        if package == "rocketmq_replica":
            assert rest.replace(".", "/") in pure, (
                f"{name} imports {module}, which docs/reference/replica.md does not call pure"
            )
        elif package == "rocketmq_remoting":
            assert rest in PURE_ELSEWHERE, f"{name} imports {module}"
        else:
            assert package in ALLOWED, f"{name} imports {module}"


@pytest.mark.parametrize("name", pure_modules())
def test_a_pure_module_waits_for_nobody_and_calls_no_world(name: str) -> None:
    for node in ast.walk(parsed(name)):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith), name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in WORLD, f"{name} calls {node.func.id}"


@pytest.mark.parametrize("name", sorted(PURE_ELSEWHERE))
def test_what_they_import_of_the_protocol_is_pure_too(name: str) -> None:
    path = PACKAGE.parent / "rocketmq_remoting" / f"{name}.py"
    allowed = ALLOWED | {"binascii", "ipaddress", "rocketmq_remoting", "socket", "zlib"}  # socket: inet_pton
    for module in imports(ast.parse(path.read_text(encoding="utf-8"))):
        assert module.partition(".")[0] in allowed, f"{name} imports {module}"


def test_every_core_of_the_issue_is_among_them() -> None:
    assert {"ha/links", "log/epochs", "sync_state", "master_term", "role_change", "controller/start_up"} <= set(
        pure_modules()
    )


def test_no_other_module_is_pure_by_chance_and_unlisted() -> None:
    """A module that only has pure imports belongs on the list, so that it stays so."""
    pure = set(pure_modules())
    found_paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    others = {path.as_posix() for path in found_paths if not path.name.startswith("__")} - pure
    for name in others:
        tree = parsed(name)
        found = set(imports(tree))
        waits = any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))
        only_pure = all(
            module.partition(".")[0] in ALLOWED
            or module.removeprefix("rocketmq_replica.").replace(".", "/") in pure
            or module.removeprefix("rocketmq_remoting.") in PURE_ELSEWHERE
            for module in found
        )
        assert waits or not only_pure, f"{name} could be listed as pure"
