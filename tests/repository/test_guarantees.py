"""A sentence that states a guarantee links to the test that shows it; and each such link names a test that is there.

A description of a CRD, an Event and a condition cannot link: `SHOWN_BY` names the test of each such phrase. A docstring of the
code that decides names its test in the sentence itself.

Beside a sentence stands `([test](../../tests/e2e/test_x.py "test_name"))`, in a table [`test_name`](../../tests/e2e/test_x.py).
Both are links on GitHub, and the site has a page of each file that is linked (docs/site/rest_of_the_checkout.py).
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from tests.repository.test_docs import DOCS, PAGES, ROOT, TEST_LINK

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMISES = "docs/concepts/promises.md"
README = "README.md"
# Each of these words on a page of promises states a guarantee.
# On the other pages "only" and "lost" are words of any sentence: "only with --replace", "a lost master".
STRONG = re.compile(r"\b(never|always|nothing acknowledged)\b", re.IGNORECASE)
GUARANTEE = re.compile(r"\b(never|always|only|(?:no|nothing|every) acknowledged)\b", re.IGNORECASE)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
# A value of a field, as `Never` of `uncleanElection`, states nothing.
CODE = re.compile(r"`[^`]*`")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[(])")

# One worker reads the product and the tests once.
pytestmark = pytest.mark.xdist_group("guarantees")


@cache
def names_in(path: Path) -> frozenset[str]:
    """The tests that a file has: those of its classes too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


def wrong_links(text: str, folder: Path) -> list[str]:
    """Each link to a test that is not there, or that does not say which of the file's tests it is."""
    wrong = []
    for link in TEST_LINK.finditer(text):
        target = (folder / link["path"]).resolve()
        name = link["title"] or link["label"].strip("`")
        if not target.is_file():
            wrong.append(f"{link[0]}: no such file")
        elif not name.startswith("test_"):
            if target.name.startswith("test_"):
                wrong.append(f"{link[0]}: which test? expected its name as the label in ` ` or as the title")
        elif name not in names_in(target):
            wrong.append(f"{link[0]}: no such test in the file")
    return wrong


def sentences(text: str) -> list[str]:
    """A row of a table is one; else what ends with a full stop, or at the end of its paragraph or item."""
    found = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.)\s)|(?<=\|)\n", FENCED.sub("", text)):
        found += [block] if block.startswith("|") else SENTENCE_END.split(" ".join(block.split()))
    return [one for one in found if one]


def without_a_test(text: str, words: re.Pattern[str] = GUARANTEE) -> list[str]:
    """The sentences that state a guarantee, and link to no test."""
    stated = {one: CODE.sub("", TEST_LINK.sub("", one)) for one in sentences(text)}
    return [one for one, said in stated.items() if words.search(said) and not TEST_LINK.search(one)]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_test_names_one_that_is_there(page: str) -> None:
    path = ROOT / page
    assert wrong_links(path.read_text(encoding="utf-8"), path.parent) == []


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ('([test](../../tests/repository/test_gone.py "test_gone"))', "no such file"),
        ('([test](../../tests/repository/test_guarantees.py "test_gone"))', "no such test"),
        ("[`test_gone`](../../tests/repository/test_guarantees.py)", "no such test"),
        ("[test](../../tests/repository/test_guarantees.py)", "which test"),
        ("[`test_every_sentence_that_promises_links_to_a_test`](../../tests/repository/test_guarantees.py)", None),
        ("[`normal_life.txt`](../../tests/core/traces/normal_life.txt)", None),
        ("[`gone.txt`](../../tests/core/traces/gone.txt)", "no such file"),
    ],
)
def test_a_bad_link_is_seen(link: str, said: str | None) -> None:
    wrong = wrong_links(f"It holds {link}.", Path(__file__).parent)
    assert [said in one for one in wrong] == [True] if said else wrong == []


@pytest.mark.parametrize("page", [PROMISES, README])
def test_every_sentence_that_promises_links_to_a_test(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == README:
        text = text.partition("## What it promises\n")[2].partition("\n## ")[0]
    assert len([one for one in sentences(text) if GUARANTEE.search(one)]) >= 2
    assert without_a_test(text) == []


# Written by a program: its fields have rules that an API server checks.
GENERATED = {"docs/reference/brokergroup.md"}
# Answers beside Java's, each row of which names its trace or test; and exit codes.
TABLES = {"docs/reference/controller.md", "docs/reference/deviations.md", "docs/reference/commands.md"}
FOR_USERS = (
    "README.md",
    "docs/start/",
    "docs/tasks/",
    "docs/concepts/",
    "docs/reference/",
    "docs/runbooks/",
    "charts/",
)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.startswith(FOR_USERS) and page not in GENERATED | TABLES]
)
def test_a_page_for_users_says_never_and_always_only_with_a_test(page: str) -> None:
    assert without_a_test((ROOT / page).read_text(encoding="utf-8"), STRONG) == []


SHOWN = '([test](../tests/core/test_no_loss.py "test_long_lives_lose_nothing"))'


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        (f"It never forgets {SHOWN}. It never sleeps.", ["It never sleeps."]),
        (f"Nothing acknowledged is lost.\n\nIt is quick {SHOWN}.", ["Nothing acknowledged is lost."]),
        (f"| it never sleeps | yes |\n| it always wakes | {SHOWN} |", ["| it never sleeps | yes |"]),
        (f"- Only one\n  leads.\n- It always wakes {SHOWN}", ["- Only one leads."]),
        ('It is quick ([test](../tests/core/test_no_loss.py "test_it_never_sleeps")).', []),
        ("It is often quick.\n```\nnever\n```\n", []),
        ("Set `uncleanElection: Never`.", []),
    ],
)
def test_a_promise_without_a_test_is_seen(text: str, bare: list[str]) -> None:
    assert without_a_test(text) == bare


@pytest.mark.parametrize(
    ("page", "head"),
    [
        ("concepts/promises.md", "| guarantee | shown by |"),
        ("concepts/architecture.md", "| # | rule | where | shown by |"),
        ("contributors/shown-by.md", "| rule | shown by |"),
    ],
)
def test_every_row_of_guarantees_links_to_a_test(page: str, head: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    rows = text.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(rows) >= 7
    assert [row for row in rows if not TEST_LINK.search(row.rstrip(" |").rpartition("|")[2])] == []


# A user reads these without the page beside them. "neither" and "no later" say "never" in other words.
TOLD: Final = re.compile(r"\b(never|always|only|neither|no later|cannot be (?:lowered|changed))\b", re.IGNORECASE)
CASES: Final = "tests/api/test_validation.py::test_case"
LEARNER: Final = "tests/operations/test_types.py::test_a_learner_is_made_master_by_nothing"
TLS: Final = (
    "tests/real/test_java_tls.py"
    "::test_a_running_cluster_changes_to_enforced_tls_and_renews_its_certificate_without_a_loss"
)
ELECT: Final = "tests/operations/test_types.py::test_elect_wants_the_name_and_no_serving_master"
# A phrase of a CRD, an Event or a condition -> the test that shows it. Those of `test_case` are in
# validation_cases.yaml.
SHOWN_BY: Final = {
    "A member is stopped only if the others acknowledge writes without it": "tests/reconcile/test_stopping.py::test_next_step",
    "neither join the SyncStateSet nor become master":
        "tests/replica/test_slaves.py::test_a_learner_has_every_byte_and_is_never_in_the_set",
    "no later member gets it": "tests/core/test_properties.py::test_every_way_keeps_the_invariants",
    "no later broker gets it": "tests/core/test_properties.py::test_every_way_keeps_the_invariants",
    "neither added nor removed later": CASES,
    "neither added, changed nor removed later": CASES,
    "restored into a new group only": "tests/reconcile/test_backups.py::test_why_it_cannot_begin",
    "stopped only within 10 s of that": "tests/reconcile/test_backups.py::test_one_member_is_stopped_for_a_backup",
    "cannot be lowered": CASES,
    "cannot be changed once": CASES,
    "cannot be changed here": CASES,
    "its id is never used again": "tests/core/test_properties.py::test_every_way_keeps_the_invariants",
    "is never master": LEARNER,
    "at other times it does neither": "tests/reconcile/test_windows.py::test_what_waits_for_the_window",
    "only a running broker can be elected": ELECT,
    "an unclean election could only lose data": ELECT,
    "servers accept TLS only": TLS,
    "Servers take a renewed certificate without a restart": TLS,
}  # fmt: skip
# In these the words count, and promise nothing.
NO_GUARANTEE: Final = (
    "names neither version nor image", "is the only", "Only the master", "only the master votes", "only the last",
)  # fmt: skip
# The texts of these become Events and conditions.
TELLING: Final = ("observe/events.py", "reconcile/operations", "reconcile/decide", "reconcile/tell")
OPERATOR: Final = ROOT / "operator" / "brokergroup_operator"


def described(schema: Any) -> Iterator[str]:
    """The descriptions of a schema, without the values that its fields may have: `Never` is one of them."""
    if isinstance(schema, dict):
        text = schema.get("description")
        if isinstance(text, str):
            yield re.sub("|".join([*(rf"\b{one}\b" for one in schema.get("enum", [])), "$^"]), "", text)
        for value in schema.values():
            yield from described(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from described(value)


def texts_told(tree: ast.Module) -> Iterator[str]:
    """The texts of a module but its docstrings; of one with values in it, its parts together."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented)
                  and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (parts | docstrings):
            yield node.value


@cache
def told() -> frozenset[str]:
    """The sentences of descriptions, Events and conditions that state a guarantee."""
    crds = (
        yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        for file in sorted((ROOT / "crds").glob("*.yaml"))
    )
    texts = [text for crd in crds for text in described(crd)]
    for place in (OPERATOR / one for one in TELLING):
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            texts += texts_told(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(one for text in set(texts) for one in SENTENCE_END.split(text) if TOLD.search(one))


def test_what_a_user_is_told_for_certain_names_its_test() -> None:
    known = (*SHOWN_BY, *NO_GUARANTEE)
    assert [one for one in sorted(told()) if not any(phrase in one for phrase in known)] == []


def test_a_phrase_of_the_table_is_said_somewhere() -> None:
    assert [phrase for phrase in (*SHOWN_BY, *NO_GUARANTEE) if not any(phrase in one for one in told())] == []


@pytest.mark.parametrize("shown", sorted(set(SHOWN_BY.values())))
def test_the_test_of_a_phrase_is_there(shown: str) -> None:
    path, _, name = shown.partition("::")
    assert name in names_in(ROOT / path)


# The code that decides and carries out a change of master.
HEART: Final = (ROOT / "controller_core", OPERATOR / "controller")
# "only" is a word of any sentence here ("only its 907 shows it"); "the only" says that there is no second one.
CERTAIN: Final = re.compile(r"\b(never|always|the only)\b", re.IGNORECASE)
TEST_NAME: Final = re.compile(r"\btest_\w+")
TEST_DEFINITION: Final = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def docstrings(code: str) -> Iterator[str]:
    """The docstrings of a module, of its classes, functions and constants."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield inspect.cleandoc(node.value.value)


@cache
def known_tests() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset(name for file in files for name in TEST_DEFINITION.findall(file.read_text(encoding="utf-8")))


def certain_without_a_test(code: str) -> list[str]:
    """The sentences of docstrings that state a guarantee, and name no test that is there."""
    stated = (one for text in docstrings(code) for one in sentences(text) if CERTAIN.search(one))
    return [one for one in stated if known_tests().isdisjoint(TEST_NAME.findall(one))]


def test_a_docstring_of_the_heart_says_never_and_always_only_with_a_test() -> None:
    files = [file for folder in HEART for file in sorted(folder.rglob("*.py"))]
    assert len(files) > 40
    bare = {
        f"{file.relative_to(ROOT)}: {one}"
        for file in files
        for one in certain_without_a_test(file.read_text(encoding="utf-8"))
    }
    assert sorted(bare) == []


def test_a_test_that_a_docstring_of_the_heart_names_is_there() -> None:
    known = known_tests() | {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    named = {
        (str(file.relative_to(ROOT)), name)
        for folder in HEART
        for file in folder.rglob("*.py")
        for text in docstrings(file.read_text(encoding="utf-8"))
        for name in TEST_NAME.findall(text)
    }
    assert named
    assert sorted(one for one in named if one[1] not in known) == []


HELD: Final = "(`test_long_lives_lose_nothing`)"


@pytest.mark.parametrize(
    ("code", "bare"),
    [
        (f'"""It never forgets {HELD}. It is only quick."""', []),
        ('"""It never forgets. It is quick."""', ["It never forgets."]),
        ('class One:\n    """Here.\n\n    Always awake,\n    by day.\n    """', ["Always awake, by day."]),
        ('def one():\n    """The only one (`test_gone`)."""', ["The only one (`test_gone`)."]),
        ('ONE = 1\n"""Never 2."""', ["Never 2."]),
        ('ONE = "never told"  # always', []),
    ],
)
def test_a_certain_docstring_without_a_test_is_seen(code: str, bare: list[str]) -> None:
    assert certain_without_a_test(code) == bare
