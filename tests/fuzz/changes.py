"""Draws changes of a spec, at one leaf or its parents, field by field as in an editor: set, delete, grow, go to a bound.

A change that the rules refuse is repaired: the fields that a complaint's rule reads are drawn again until the
spec is accepted. So fields that need another one (monitoring.exporter needs implementation rocketmq) are reached too.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tests.fuzz import schema
from tests.fuzz.admission import blamed, complaints

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.admission import Spec
    from tests.fuzz.schema import Node

    Draw = Callable[[st.SearchStrategy[Any]], Any]

TRIES_TO_MEND = 12
GROWN = 4


class Kind(StrEnum):
    """The kind of a leaf's change."""

    SET = "set"
    DELETE = "delete"
    GROW = "grow"
    BOUNDARY = "boundary"
    OUTSIDE = "outside"


KINDS = (Kind.SET, Kind.SET, Kind.SET, Kind.DELETE, Kind.GROW, Kind.BOUNDARY)


@dataclass(frozen=True)
class Change:
    """A new spec, and its differences."""

    spec: Spec
    kind: Kind
    leaf: str


def change(draw: Draw, spec: Spec, leaf: str, kind: Kind) -> Spec:
    """Return the spec with a change at this leaf or at a parent of it."""
    changed: Spec = _at(draw, schema.spec_node(), copy.deepcopy(spec), schema.steps(leaf), kind)
    return changed


def _at(draw: Draw, at: Node, value: Any, rest: tuple[str, ...], kind: Kind) -> Any:
    if not rest:
        return draw(_values(at, kind))
    step, *others = rest
    if step == "[]":
        return _in_list(draw, at, value if isinstance(value, list) else [], tuple(others), kind)
    if step == "{}":
        return _in_map(draw, at, dict(value) if isinstance(value, dict) else {}, tuple(others), kind)
    holder = dict(value) if isinstance(value, dict) else {}
    if kind is Kind.DELETE and step in holder and (not others or draw(st.integers(0, 3)) == 3):
        del holder[step]
        return holder
    if kind is Kind.DELETE and step not in holder:
        kind = Kind.SET
    holder[step] = _at(draw, at.properties[step], holder.get(step), tuple(others), kind)
    return holder


def _values(at: Node, kind: Kind) -> st.SearchStrategy[Any]:
    if kind is Kind.OUTSIDE:
        return schema.outside(at)
    return schema.boundary(at) if kind is Kind.BOUNDARY else schema.value(at)


def _in_list(draw: Draw, at: Node, items: list[Any], rest: tuple[str, ...], kind: Kind) -> list[Any]:
    assert at.items is not None
    items = list(items)
    if kind is Kind.DELETE and items:
        del items[draw(st.integers(0, len(items) - 1))]
        return items
    if kind is Kind.GROW:
        added = draw(st.lists(schema.value(at.items), min_size=1, max_size=GROWN))
        return _once(at, [*items, *added])
    if items and draw(st.booleans()):
        index = draw(st.integers(0, len(items) - 1))
        items[index] = _at(draw, at.items, items[index], rest, kind)
        return items
    made = draw(schema.value(at.items))
    return _once(at, [*items, _at(draw, at.items, made, rest, kind)])


def _once(at: Node, items: list[Any]) -> list[Any]:
    """Return the last item of each key; a list without keys may have equal items."""
    keys = at.schema.get("x-kubernetes-list-map-keys")
    if keys and all(isinstance(item, dict) for item in items):
        return list({repr([item.get(name) for name in keys]): item for item in items}.values())
    if at.schema.get("x-kubernetes-list-type") == "set":
        return list({repr(item): item for item in items}.values())
    return items


def _in_map(draw: Draw, at: Node, entries: dict[str, Any], rest: tuple[str, ...], kind: Kind) -> dict[str, Any]:
    assert at.values is not None
    if kind is Kind.DELETE and entries:
        del entries[draw(st.sampled_from(sorted(entries)))]
        return entries
    if kind is Kind.GROW:
        more = draw(st.dictionaries(schema.key(at), schema.value(at.values), min_size=1, max_size=GROWN))
        return {**entries, **more}
    known = st.sampled_from(sorted(entries)) if entries else schema.key(at)
    name = draw(st.one_of(known, schema.key(at)))
    entries[name] = _at(draw, at.values, entries.get(name), rest, kind)
    return entries


@st.composite
def changes(draw: Draw, spec: Spec, leaf: str, *, old: Spec | None, refused_too: bool = True) -> Change:
    """Draw one change at this leaf, repaired until the API accepts it in place of the old spec, if possible."""
    if refused_too and draw(st.integers(0, 11)) == 11:
        return Change(change(draw, spec, leaf, Kind.OUTSIDE), Kind.OUTSIDE, leaf)
    kind = draw(st.sampled_from(KINDS))
    wish = change(draw, spec, leaf, kind)
    for _ in range(TRIES_TO_MEND):
        wrong = complaints(wish, old)
        if not wrong or (refused_too and draw(st.integers(0, 7)) == 7):
            break
        named = [path for error in wrong for path in blamed(error)]
        # Change other fields rather than the subject, which would be removed again, unless no other field fits its value.
        others = [path for path in named if not _in_one_item(path, leaf)]
        mendable = [*named, *others, *others] or [leaf]
        wish = change(
            draw, wish, draw(st.sampled_from(mendable)), draw(st.sampled_from((Kind.SET, Kind.SET, Kind.DELETE)))
        )
    return Change(wish, kind, leaf)


def _in_one_item(path: str, leaf: str) -> bool:
    """Whether both are the same leaf, or fields of the items of one list."""
    return path == leaf or ("[]" in leaf and path.startswith(leaf[: leaf.rindex("[]") + 2]))


def drawn_leaves(before: Spec, after: Spec) -> set[str]:
    """Return the leaves at which two specs differ."""
    found: set[str] = set()
    _compare(schema.spec_node(), before, after, found)
    return found


def _compare(at: Node, before: Any, after: Any, found: set[str]) -> None:
    if before == after:
        return
    if at.is_leaf:
        found.add(at.path)
    if at.items is not None:
        items = after if isinstance(after, list) else []
        olds = before if isinstance(before, list) else []
        for item in (one for one in items if one not in olds):
            _compare(at.items, None, item, found)
    for name, child in at.properties.items():
        _compare(child, _get(before, name), _get(after, name), found)
    if at.values is not None:
        for name in {*(before or {}), *(after or {})}:
            _compare(at.values, _get(before, name), _get(after, name), found)


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
