"""What the replica's sources may do: which modules are pure (`docs/reference/replica.md`), which write to the disk, and imports.

A pure module imports nothing that does I/O, waits or reads a clock, nor do the modules that it imports.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import rocketmq_replica
from tests.replica.crashing_disk import REPLACED

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(rocketmq_replica.__file__).parent
DOCUMENT = (PACKAGE.parent / "docs" / "reference" / "replica.md").read_text(encoding="utf-8")
# What a pure module may import of the standard library: values and their forms, no world. And msgspec, for structs.
ALLOWED = {
    "array", "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "struct", "typing",
}  # fmt: skip
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


def is_pure(module: str, pure: set[str]) -> bool:
    package, _, rest = module.partition(".")
    if package == "rocketmq_replica":
        return rest.replace(".", "/") in pure
    return rest in PURE_ELSEWHERE if package == "rocketmq_remoting" else package in ALLOWED


def test_a_pure_module_imports_pure_ones_only() -> None:
    pure = pure_modules()
    for name in pure:
        for module in imports(parsed(name)):
            assert is_pure(module, set(pure)), (
                f"{name} imports {module}, which docs/reference/replica.md does not call pure"
            )


def test_a_pure_module_neither_waits_nor_calls_the_world() -> None:
    for name in pure_modules():
        for node in ast.walk(parsed(name)):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith), name
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in WORLD, f"{name} calls {node.func.id}"


def test_what_they_import_of_the_protocol_is_pure_too() -> None:
    allowed = ALLOWED | {"binascii", "ipaddress", "rocketmq_remoting", "socket", "zlib"}  # socket: inet_pton
    for name in PURE_ELSEWHERE:
        path = PACKAGE.parent / "rocketmq_remoting" / f"{name}.py"
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
        waits = any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))
        assert waits or not all(is_pure(module, pure) for module in imports(tree)), f"{name} could be listed as pure"


def test_the_import_is_light() -> None:
    """Start-up time is failover time: nothing of the operator's libraries comes along."""
    code = (
        "import sys, rocketmq_replica.process;"
        "print([name for name in ('kopf', 'kubernetes', 'aiohttp', 'typer', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_else_writes_to_the_disk() -> None:
    """The journal is whole only if every change goes through the functions of ``log/disk.py`` that a Recorder replaces."""
    changes = {"write", "pwrite", "pwritev", "ftruncate", "truncate", "fsync", "fdatasync", "write_bytes", "write_text"}
    changes |= {"mkdir", "makedirs", "rename", "replace", "rmdir", "touch", "fallocate", "posix_fallocate", "sendfile"}
    found = set()
    for path in Path(rocketmq_replica.__file__).parent.rglob("*.py"):
        for part in ast.parse(path.read_text()).body:
            if path.name == "disk.py" and getattr(part, "name", "") in REPLACED:
                continue
            for node in ast.walk(part):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in changes:
                    found.add((path.name, ast.unparse(node.func)))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                    found.add((path.name, "open"))
                if isinstance(node, ast.Attribute) and node.attr in {"O_CREAT", "O_TRUNC", "O_WRONLY", "O_APPEND"}:
                    found.add((path.name, node.attr))
    others = {(name, what) for name, what in found if "transport" not in what and what != "dataclasses.replace"}
    assert others == {
        ("commit_log.py", "self.truncate"),
        ("message_store.py", "self.log.truncate"),
        ("links.py", "store.truncate"),
        ("message_store.py", "self.index.write"),
        ("message_store.py", "self._deleted.replace"),
        ("tables.py", "self._file.write"),
        ("tables.py", "self.write"),
        ("side_files.py", "self._file.write"),
        ("side_files.py", "self.replace"),
        ("upkeep.py", "table.write"),
        ("upkeep.py", "self._broker.topics.write"),
        ("topics.py", "self.write"),
        ("topics.py", "self._file.write"),
    }
