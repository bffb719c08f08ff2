"""README.md names every test of this folder, and every number in it is told by the test that its line names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
LINE = re.compile(r"^\| (?P<numbers>[^|]+) \|.*\| `(?P<test>test_\w+)` \|$", re.MULTILINE)


def all_tests() -> dict[str, str]:
    """The tests of this folder and what each says of itself."""
    found: dict[str, str] = {}
    for path in HERE.glob("test_*.py"):
        if path != Path(__file__):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    found[node.name] = ast.get_docstring(node) or ""
    return found


def test_the_table_and_the_tests_agree() -> None:
    found = all_tests()
    lines = [
        (line["numbers"], line["test"]) for line in LINE.finditer((HERE / "README.md").read_text(encoding="utf-8"))
    ]
    assert sorted(test for _, test in lines) == sorted(found)
    for numbers, test in lines:
        for number in re.findall(r"\d{4,5}", numbers):
            assert f"#{number}" in found[test] or f"_{number}_" in test, f"{test} does not tell of #{number}"


def test_every_test_says_where_it_comes_from() -> None:
    for name, told in all_tests().items():
        assert re.match(r"test_(issue_\d+|source)_", name), name
        assert "#" in told or "Source" in told or "issue_5712" in name, name
