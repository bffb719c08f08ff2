"""A definition's effects on its objects: pruning, defaults, complaints, CEL rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.kinds.builtin import CUSTOM_RESOURCE_DEFINITIONS
from kube_sandbox.api_server.kinds.schema import SchemaNode
from kube_sandbox.api_server.requests import Write
from tests.parity.peer import thing

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.object_store import ObjectStore


def _complaints(store: ObjectStore, things: ResourceType, body: dict[str, Any]) -> list[str]:
    with pytest.raises(StatusError) as caught:
        store.create(things, "default", body)
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")
    assert caught.value.details is not None
    return [f"{cause['field']}: {cause['message']}" for cause in caught.value.details["causes"]]


NOT_CHECKED = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid;"
    " correct the existing errors to complete validation"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.b", ["metadata.name: Invalid value: \"a.b\": metadata.name in body should match '^[a-z]+$'"]),
        ("abcdef", ["metadata.name: Too long: may not be more than 5 bytes", NOT_CHECKED]),
    ],
)
def test_a_name_is_judged_by_the_schema_too(
    definition: dict[str, Any], store: ObjectStore, things: ResourceType, name: str, expected: list[str]
) -> None:
    store.create(things, "default", {**thing(), "metadata": {"name": "made-before"}})
    current = store.get(CUSTOM_RESOURCE_DEFINITIONS, "", "things.example.dev").obj
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    named = {"type": "string", "maxLength": 5, "pattern": "^[a-z]+$"}
    properties["metadata"] = {"type": "object", "properties": {"name": named}}
    store.update(CUSTOM_RESOURCE_DEFINITIONS, "", "things.example.dev", {**current, "spec": definition["spec"]})
    things = store.resource("example.dev", "v1", "things")
    assert _complaints(store, things, {**thing(), "metadata": {"name": name}}) == expected
    store.patch(things, "default", "made-before", {"spec": {"replicas": 4}}, Write())


def test_unknown_fields_are_dropped_and_told(store: ObjectStore, things: ResourceType) -> None:
    write = Write()
    body = thing(anything={"free": {"as": "a bird"}}, config={"k": "v"}, parts=[{"id": 1, "odd": 2}])
    body["odd"] = 3
    spec = store.create(things, "default", body, write).obj["spec"]
    assert spec["anything"] == {"free": {"as": "a bird"}}
    assert spec["config"] == {"k": "v"}
    assert spec["parts"] == [{"id": 1}]
    assert sorted(write.warnings) == ['unknown field "odd"', 'unknown field "spec.parts[0].odd"']


def test_unchanged_parts_are_not_judged_again(definition: dict[str, Any], store: ObjectStore) -> None:
    things = store.resource("example.dev", "v1", "things")
    store.create(things, "default", thing(names=["abc"]))
    current = store.get(CUSTOM_RESOURCE_DEFINITIONS, "", "things.example.dev").obj
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["names"]["items"]["maxLength"] = 1
    changed = {**current, "spec": definition["spec"]}
    store.update(CUSTOM_RESOURCE_DEFINITIONS, "", "things.example.dev", changed)
    things = store.resource("example.dev", "v1", "things")
    store.patch(things, "default", "one", {"spec": {"replicas": 4}}, Write())
    with pytest.raises(StatusError, match="may not be more than 1 bytes"):
        store.patch(things, "default", "one", {"spec": {"names": ["abd"]}}, Write())


RULES: list[tuple[str, Any, bool]] = [
    ("!has(self.a) || self.a == 1", {}, True),
    ("has(self.a.b) && self.a.b > 3", {"a": {}}, False),
    ("self.a.size() == 2 && size(self.a) == 2", {"a": [1, 2]}, True),
    ("self.a.all(x, x > 0) && self.a.exists(x, x == 2) && self.a.exists_one(x, x == 1)", {"a": [1, 2]}, True),
    ("self.a.map(x, x.id).filter(i, i > 1) == [2]", {"a": [{"id": 1}, {"id": 2}]}, True),
    ("self.m in self.s", {"m": 3, "s": [1, 3]}, True),
    (
        "self.n.startsWith('a') && self.n.endsWith('c') && self.n.contains('b') && self.n.matches('^[a-c]+$')",
        {"n": "abc"},
        True,
    ),
    ("self.n.lowerAscii() == 'abc' && self.n.split('B').size() == 2", {"n": "ABC"}, True),
    ("self.n.lastIndexOf('b') == 1 && self.n.replace('a', 'x') == 'xb'", {"n": "ab"}, True),
    ("self.a == 'x' ? self.b > 1 : true", {"a": "x", "b": 1}, False),
    ("self.all(k, k.startsWith('a'))", {"ab": 1}, True),
    ("quantity(self.q).isGreaterThan(quantity('1Gi'))", {"q": "2Gi"}, True),
    ("quantity(self.q).compareTo(quantity('1000m')) == 0 && isQuantity(self.q)", {"q": "1"}, True),
    ("duration(self.d).getSeconds() == 90", {"d": "1m30s"}, True),
    ("self.a == 1 || self.missing == 2", {"a": 1}, True),
    ("self.a.sum() == 3", {"a": [1, 2]}, True),
    ("quantity(self.q).isInteger() && quantity(self.q).isLessThan(quantity('2k'))", {"q": "1Ki"}, True),
    ("quantity(self.q).isInteger()", {"q": "1500m"}, False),
]


def _judged(rule: dict[str, Any], value: Any) -> list[str]:
    properties = {name: {"x-kubernetes-preserve-unknown-fields": True} for name in value}
    node = SchemaNode({"type": "object", "properties": properties, "x-kubernetes-validations": [rule]})
    errors: list[Any] = []
    node.judge(value, None, "spec", errors)
    return [str(error) for error in errors]


@pytest.mark.parametrize(("rule", "value", "holds"), RULES)
def test_rules(rule: str, value: Any, holds: bool) -> None:
    assert _judged({"rule": rule}, value) == ([] if holds else [f"spec: Invalid value: failed rule: {rule}"])


CHOOSE = {"message": "choose another", "fieldPath": ".a"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"rule": "self.missing > 1"}, "spec: Invalid value: no such key: missing evaluating rule: self.missing > 1"),
        ({"messageExpression": "'a is ' + string(self.a)"}, "spec: Invalid value: a is 1"),
        ({"reason": "FieldValueForbidden", **CHOOSE}, "spec.a: Forbidden: choose another"),
        ({"reason": "FieldValueRequired", **CHOOSE}, "spec.a: Required value: choose another"),
        # As kube-apiserver 1.35 does, which drops the message of a duplicate.
        ({"reason": "FieldValueDuplicate", **CHOOSE}, "spec.a: Duplicate value"),
    ],
)
def test_a_broken_rule_is_a_complaint_with_its_message_and_reason(rule: dict[str, Any], expected: str) -> None:
    assert _judged({"rule": "self.a > 1", **rule}, {"a": 1}) == [expected]


def _schema(**spec: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": {"type": "object", **spec}}}
    return {"versions": [{"name": "v1", "storage": True, "schema": {"openAPIV3Schema": schema}}]}


UNREADABLE = {"name": "Odd", "type": "string", "jsonPath": "..odd"}


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"versions": []}, ""),
        (
            {"versions": [{"name": "v1", "storage": True, "additionalPrinterColumns": [UNREADABLE]}]},
            "cannot read JSON path '..odd'",
        ),
        (_schema(pattern="("), "unterminated subpattern"),
        ({"names": {"kind": "Other"}}, "plural"),
        (_schema(**{"x-kubernetes-validations": [{"rule": "self.mode ==="}]}), "compilation failed"),
        (_schema(**{"x-kubernetes-validations": [{"rule": "self.?mode.orValue('') == ''"}]}), "compilation failed"),
        (
            _schema(**{"x-kubernetes-validations": [{"rule": "self.mode == ''", "optionalOldSelf": True}]}),
            "optionalOldSelf is not supported",
        ),
    ],
)
def test_a_definition_that_cannot_be_served_is_refused(
    definition: dict[str, Any], store: ObjectStore, broken: dict[str, Any], told: str
) -> None:
    definition["metadata"]["name"] = "others.example.dev"
    definition["spec"] |= {"names": {"plural": "others", "kind": "Other"}} | broken
    with pytest.raises(StatusError, match="cannot be served") as caught:
        store.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
    assert (caught.value.code, told in caught.value.message) == (422, True)
    assert store.storage.get(CUSTOM_RESOURCE_DEFINITIONS.storage_key, ("", "others.example.dev")) is None
    with pytest.raises(LookupError):
        store.resource("example.dev", "v1", "others")


def test_a_definition_is_established_in_the_moment_it_is_stored(store: ObjectStore) -> None:
    status = store.get(CUSTOM_RESOURCE_DEFINITIONS, "", "things.example.dev").obj["status"]
    assert {condition["type"]: condition["status"] for condition in status["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    assert status["acceptedNames"]["listKind"] == "ThingList"
    assert status["storedVersions"] == ["v1"]


def test_a_definition_is_served_in_its_storage_version(definition: dict[str, Any], store: ObjectStore) -> None:
    definition["metadata"]["name"] = "others.example.dev"
    definition["spec"]["names"] = {"plural": "others", "kind": "Other"}
    definition["spec"]["versions"].append({**definition["spec"]["versions"][0], "name": "v0", "storage": False})
    store.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
    assert store.resource("example.dev", "v1", "others").kind == "Other"
    with pytest.raises(LookupError):
        store.resource("example.dev", "v0", "others")
