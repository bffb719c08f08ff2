"""The size of each folder of Python at one commit, or at two beside each other.

Files, lines, lines a file, private functions with one caller.

    python -m tests.repository.folders [BEFORE] [AFTER]

AFTER is HEAD unless named. A private function (its name begins with one underscore) has one caller if its name stands
exactly once in the Python of the commit outside its own definition. Lines are counted with comments and blank lines.
The last line is JSON.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
WHOLE: Final = "all"


@dataclass(frozen=True)
class Folder:
    """What one folder has, its subfolders included."""

    files: int
    lines: int
    with_one_caller: int

    @property
    def mean(self) -> int:
        """Lines a file."""
        return round(self.lines / self.files) if self.files else 0


def main(arguments: list[str]) -> int:
    """Print the table of one commit, or of two, then the same figures as JSON."""
    commits = (arguments or ["HEAD"]) + (["HEAD"] if len(arguments) == 1 else [])
    tables = [measure(sources(commit)) for commit in commits]
    print("\n".join(rows(tables)))
    print(json.dumps({commit: figures(table) for commit, table in zip(commits, tables, strict=True)}))
    return 0


def sources(commit: str) -> dict[str, str]:
    """Return the text of every Python file of a commit, by its path."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", commit], check=True, capture_output=True
    ).stdout
    texts: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.name.endswith(".py") else None
            if content is not None:
                texts[entry.name] = content.read().decode()
    return texts


def measure(texts: Mapping[str, str]) -> dict[str, Folder]:
    """Return the size of each folder by its name; `all` is their sum."""
    trees = {path: ast.parse(text, path) for path, text in texts.items()}
    uses = Counter(name for tree in trees.values() for name in _names_used(tree))
    found: dict[str, list[tuple[int, int]]] = {}
    for path, text in texts.items():
        once = sum(uses[name] == 1 for name in _private_functions(trees[path]))
        for folder in (_folder(path), WHOLE):
            found.setdefault(folder, []).append((len(text.splitlines()), once))
    return {
        folder: Folder(
            files=len(sizes), lines=sum(lines for lines, _ in sizes), with_one_caller=sum(once for _, once in sizes)
        )
        for folder, sizes in sorted(found.items(), key=lambda item: (item[0] == WHOLE, item[0]))
    }


def _folder(path: str) -> str:
    """Return the package that a file is counted for: the operator's packages one by one, else the top level."""
    parts = PurePosixPath(path).parts
    if parts[0] == "operator":
        return "/".join(parts[1:3]) if len(parts) > 3 else parts[1]
    return parts[0]


def _private_functions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("_")
            and not node.name.startswith("__")
        ):
            yield node.name


def _names_used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def rows(tables: list[dict[str, Folder]]) -> Iterator[str]:
    """Yield the lines of one Markdown table; with two commits each figure is `before → after`."""
    yield "| folder | files | lines | lines a file | private functions with one caller |"
    yield "|---|---|---|---|---|"
    nothing = Folder(0, 0, 0)
    names = sorted({name for table in tables for name in table}, key=lambda name: (name == WHOLE, name))
    for name in names:
        sizes = [table.get(name, nothing) for table in tables]
        columns = ((size.files, size.lines, size.mean, size.with_one_caller) for size in sizes)
        yield (
            f"| `{name}` | "
            + " | ".join(" → ".join(f"{figure:,}" for figure in column) for column in zip(*columns, strict=True))
            + " |"
        )


def figures(table: Mapping[str, Folder]) -> dict[str, list[int]]:
    """Return files, lines and functions with one caller of each folder, for JSON."""
    return {name: [size.files, size.lines, size.with_one_caller] for name, size in table.items()}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
