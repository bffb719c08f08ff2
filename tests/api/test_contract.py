"""Public names, compared with the reference page: Events, reasons of conditions, labels, annotations, columns.

The page is generated from `api/definitions/reference.py` and the types, so these tests read the code: every name that it can
put on an object or into an Event is registered, and no other.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import OperationType
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.definitions import reference
from brokergroup_operator.api.definitions.generate import KINDS, reference_page
from brokergroup_operator.reconcile.clusters.cluster_pass import STALLED_EVENTS
from brokergroup_operator.reconcile.tell import events

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).resolve().parents[2] / "operator" / "brokergroup_operator"
TELLING = ("reconcile", "observe", "operations", "controller", "cli")
WORD = re.compile(r"(?:[A-Z][a-z]+)+")


def trees(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders or (".",):
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            yield file, ast.parse(file.read_text(encoding="utf-8"))


def words_in(node: ast.AST) -> set[str]:
    strings = (item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str))
    return {text for text in strings if WORD.fullmatch(text)}


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def told_reasons(function: ast.AST) -> Iterator[set[str]]:
    """Yield the reason of each Event in a function, or all words of the function if the reason is a variable."""
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        name = called(call)
        if name == "Note":
            reason = next((one.value for one in call.keywords if one.arg == "reason"), None)
        elif name in ("_post", "GroupEvent") and len(call.args) > 1:
            reason = call.args[1]
        else:
            continue
        match reason:
            case ast.Constant(value=str(text)):
                yield {text}
            case ast.Name():
                yield words_in(function)
            case _:
                yield set()


def produced_events() -> set[str]:
    found: set[str] = set()
    for _, tree in trees(*TELLING):
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in (*nodes, tree):
            found = found.union(*told_reasons(node)) if node is not tree else found | module_level(tree)
    # Events with a composed reason: see the functions that post them.
    found |= {event for event, *_ in (*events._BECOMES_TRUE.values(), *events._ENDS.values())}
    found |= set(STALLED_EVENTS.values())
    ends = ("Started", "Completed", "Rejected", "Failed")
    switchover = {"SwitchoverStarted", "SwitchoverCompleted"}  # posted by the controller plane
    found |= {f"{kind.value}{end}" for kind in OperationType for end in ends} | switchover
    return found | {f"{name}{end}" for name in ("Failover", "Switchover") for end in ("Cancelled", "Completed")}


def module_level(tree: ast.Module) -> set[str]:
    statements = [item for item in tree.body if isinstance(item, ast.Assign | ast.AnnAssign)]
    return set().union(*(told for item in statements for told in told_reasons(item)))


def test_every_event_is_registered_and_every_registered_one_can_be_told() -> None:
    assert produced_events() == set(reference.EVENTS)


def told_types() -> Iterator[tuple[str, bool]]:
    """Yield the reason of each Event with a literal reason and type, and whether it is a warning."""
    yield from events._BECOMES_TRUE.values()
    yield from ((event, False) for event, _ in events._ENDS.values())
    for _, tree in trees(*TELLING):
        for call in (
            node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) in {"Note", "_post"}
        ):
            warning = next((one.value for one in call.keywords if one.arg == "warning"), ast.Constant(value=False))
            told = next(told_reasons(call))
            if len(told) == 1 and isinstance(warning, ast.Constant):
                yield told.pop(), bool(warning.value)


def test_an_event_has_one_type_which_the_register_says() -> None:
    wrong = {(event, warning) for event, warning in told_types() if says_warning(event) != warning}
    assert wrong == set()
    assert len(set(told_types())) > len(reference.EVENTS) // 2


def says_warning(event: str) -> bool:
    return reference.EVENTS[event].startswith("Warning")


def test_every_reason_of_a_condition_is_used() -> None:
    used = set()
    for file, tree in trees():
        if file.name == "brokergroup_status.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason":
                used.add(node.attr)
    assert used & set(Reason.__members__) == set(Reason.__members__)


@pytest.mark.parametrize(
    ("prefix", "register"),
    [
        ("LABEL_", reference.LABELS),
        ("ANNOTATION_", reference.ANNOTATIONS),
        ("FINALIZER_", reference.FINALIZERS),
        ("FIELD_MANAGER_", reference.FIELD_MANAGERS),
    ],
)
def test_every_name_that_we_put_on_objects_is_registered(prefix: str, register: dict[str, str]) -> None:
    ours = {value for name, value in vars(names).items() if name.startswith(prefix)}
    assert ours == set(register)


def test_names_of_ours_stand_in_one_place() -> None:
    """A literal elsewhere would be an unregistered name."""
    pattern = re.compile(rf"{re.escape(names.GROUP)}/[a-z-]+")
    known = {*reference.LABELS, *reference.ANNOTATIONS, *reference.FINALIZERS, names.API_VERSION}
    known |= {f"{names.GROUP}/kubelet", f"{names.GROUP}/"}
    strangers = {
        (file.name, found)
        for file, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in pattern.findall(node.value)
        if found not in known and not found.startswith(f"{names.GROUP}/v1")
    }
    assert strangers == set()


def test_the_page_has_all_of_it() -> None:
    page = reference_page()
    registered = [*reference.EVENTS, *reference.LABELS, *reference.ANNOTATIONS, *reference.FINALIZERS]
    for name in [*registered, *(reason.value for reason in Reason)]:
        assert f"`{name}`" in page, name
    for kind in KINDS:
        for column in kind.columns:
            assert f"| `{column['name']}` |" in page, column["name"]


@pytest.mark.parametrize(
    "text", [*reference.EVENTS.values(), *reference.LABELS.values(), *reference.ANNOTATIONS.values()]
)
def test_every_entry_says_something(text: str) -> None:
    assert len(text.split()) >= 4
