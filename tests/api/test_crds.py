"""The CRDs match the types and keep an API server's limits; public names are those of the reference page."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation, OperationType
from brokergroup_operator.api.brokergroup_status import ConditionType, Reason
from brokergroup_operator.api.definitions import generate, reference
from brokergroup_operator.api.definitions.generate import KINDS, reference_page
from brokergroup_operator.api.definitions.reference import CONDITIONS
from brokergroup_operator.api.definitions.schema import structural_schema
from brokergroup_operator.api.failover_fields import DEFAULT_ELECTION_POLICY, ELECTION_POLICIES
from brokergroup_operator.api.rules import RESERVED_CONFIG_KEYS
from brokergroup_operator.reconcile.clusters.cluster_pass import STALLED_EVENTS
from brokergroup_operator.reconcile.tell import events
from controller_core.settings import POLICIES, ControllerSettings
from tests.our_kinds import our_definitions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Struct


# A copy of BrokerGroup.spec, whose nodes are checked there.
TEMPLATE = "RocketMQCluster.spec.brokerGroups.template."
# Words that YAML 1.1 reads as booleans, in any case.
BOOLEANS = {"y", "yes", "n", "no", "true", "false", "on", "off"}
REPOSITORY = Path(__file__).parents[2]


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from nodes(schema[keyword], f"{path}[]")


def all_nodes() -> dict[str, dict[str, Any]]:
    """Return all nodes by path. A test loops over them itself: one test for each node cost four times as much."""
    return {
        path: node
        for definition in our_definitions()
        for path, node in nodes(
            definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], definition["spec"]["names"]["kind"]
        )
        if not path.endswith((".apiVersion", ".kind", ".metadata")) and not path.startswith(TEMPLATE)
    }


def test_the_committed_files_are_what_the_types_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert [generate.drift(directory) for directory in generate.DEFAULT_DIRECTORIES] == [[], []]
    assert generate.main(["--check"]) == 0


def test_drift_is_found(tmp_path: Path) -> None:
    assert generate.main(["--directory", str(tmp_path)]) == 0
    _, group, state, _ = sorted(tmp_path.iterdir())
    group.write_text(group.read_text(encoding="utf-8").replace("maximum: 16", "maximum: 17"), encoding="utf-8")
    state.unlink()
    (tmp_path / "brokergroup.dev_strangers.yaml").write_text("kind: Stranger\n", encoding="utf-8")
    assert generate.main(["--check", "--directory", str(tmp_path)]) == 1
    expected = [str(group), str(state), str(tmp_path / "brokergroup.dev_strangers.yaml")]
    assert [complaint.split(": ")[0] for complaint in generate.drift(tmp_path)] == expected


def is_bounded(node: dict[str, Any]) -> bool:
    match node["type"]:
        case "string":
            return "maxLength" in node or "enum" in node
        case "array":
            return "maxItems" in node and "x-kubernetes-list-type" in node
        case "object" if "additionalProperties" in node:
            return "maxProperties" in node
        case "integer":
            return "minimum" in node
    return True


def test_everything_is_bounded() -> None:
    """Without bounds the API server cannot bound a rule's cost and refuses the CRD."""
    assert len(all_nodes()) > 400
    assert [path for path, node in all_nodes().items() if not is_bounded(node)] == []


def test_no_default_is_null() -> None:
    assert [path for path, node in all_nodes().items() if node.get("default", "absent") is None] == []


def test_yaml_reads_no_value_and_no_key_as_a_boolean() -> None:
    """A bare Off in a manifest would arrive as false, and be refused with a confusing reason."""
    assert [
        path
        for path, node in all_nodes().items()
        # A condition's status is Kubernetes' own, and no user writes it.
        if not path.endswith(".status.conditions[].status")
        and {str(text).lower() for text in (*node.get("enum", ()), *node.get("properties", ()))} & BOOLEANS
    ] == []


def test_names_columns_and_subresources() -> None:
    group, operation, cluster, state = (definition["spec"] for definition in our_definitions())

    expected = (names.GROUP, "brokergroups", ["bg"])
    assert (group["group"], group["names"]["plural"], group["names"]["shortNames"]) == expected
    assert (state["names"]["plural"], state["names"]["shortNames"]) == ("brokergroupstates", ["bgs"])
    assert group["versions"][0]["subresources"]["status"] == {}
    assert group["versions"][0]["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert (operation["names"]["plural"], operation["names"]["shortNames"]) == ("brokergroupoperations", ["bgop"])
    assert operation["versions"][0]["subresources"] == {"status": {}}
    assert (cluster["names"]["plural"], cluster["names"]["shortNames"]) == ("rocketmqclusters", ["rmq"])
    assert cluster["versions"][0]["subresources"] == {"status": {}}
    # The record has no status subresource: one compare-and-set writes the whole record.
    assert "subresources" not in state["versions"][0]
    shown = [
        column["name"] for column in group["versions"][0]["additionalPrinterColumns"] if not column.get("priority")
    ]
    assert shown == ["Replicas", "Ready", "Master", "Epoch", "In-Sync", "Safe", "Status", "Age"]


def test_every_reserved_key_has_a_rule_that_says_what_to_do_instead() -> None:
    group = our_definitions()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = group["properties"]["spec"]["properties"]["config"]["x-kubernetes-validations"]
    for key, instead in RESERVED_CONFIG_KEYS.items():
        assert f"config.{key} is set by the operator: {instead}" in [rule["message"] for rule in rules]


def test_the_election_policies_are_those_there_are() -> None:
    """A policy is one function in controller_core; its sentence for users here makes it available to a spec."""
    assert set(ELECTION_POLICIES) == set(POLICIES)
    assert ControllerSettings().election_policy == DEFAULT_ELECTION_POLICY


def test_the_page_about_the_fields_is_what_the_types_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    page = generate.REFERENCE.read_text(encoding="utf-8")
    assert page == generate.reference_page()
    monkeypatch.setattr(generate, "reference_page", lambda: page + "more")
    assert generate.main(["--check"]) == 1


def test_every_field_says_what_it_is() -> None:
    """`kubectl explain` shows only descriptions. A list describes its items if they have no fields."""
    told = {path: node for path, node in all_nodes().items() if not path.endswith("[]") or "properties" in node}
    assert [path for path, node in told.items() if len(str(node.get("description", "")).split()) < 2] == []


@pytest.mark.parametrize("kind", [BrokerGroup, BrokerGroupOperation])
def test_a_field_that_may_be_left_out_says_what_is_then(kind: type[Struct]) -> None:
    """A schema shows a default; without one, the text must state it. A section of one operation type belongs to that type."""
    spec = structural_schema(kind)["properties"]["spec"]
    silent = [
        f"{path}.{name}"
        for path, node in nodes(spec, "spec")
        for name, field in (node.get("properties") or {}).items()
        if name not in node.get("required", [])
        and "default" not in field
        and not any(word in field["description"] for word in ("bsent", "Given", "For type"))
    ]
    assert silent == []


@pytest.mark.parametrize("kind", [BrokerGroup, BrokerGroupOperation])
def test_a_number_says_of_what(kind: type[Struct]) -> None:
    """A bare integer has no unit: its name or text must have the unit, or the counted thing."""
    units = ("second", "minute", "percent", "port", "byte", "id", "epoch", "how many", "replica", "number")
    spec = structural_schema(kind)["properties"]["spec"]
    bare = [
        path
        for path, node in nodes(spec, "spec")
        if node.get("type") == "integer"
        and not path.endswith("[]")
        and not any(unit in (path.rpartition(".")[2] + node["description"]).lower() for unit in units)
    ]
    assert bare == []


def test_kubectl_apply_takes_each_of_them() -> None:
    """It writes the whole manifest into an annotation, as Go's JSON, and an object's annotations have at most 256 KiB."""
    go_escapes = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&"})
    texts = {one["metadata"]["name"]: json.dumps(one, separators=(",", ":")) for one in our_definitions()}
    sizes = {name: len(text.translate(go_escapes)) for name, text in texts.items()}
    assert {name: size for name, size in sizes.items() if size > 230_000} == {}, "leaves room for other annotations"


@pytest.mark.parametrize("part", ["spec", "status"])
@pytest.mark.parametrize("kind", [BrokerGroup, BrokerGroupOperation])
def test_every_field_is_on_the_page(kind: type[Struct], part: str) -> None:
    _, section = generate.reference_page().split(f"## {kind.__name__}.{part}\n")
    rows = re.findall(rf"^\| `({part}\.[^`]+)` \|", section.split("\n## ")[0], flags=re.MULTILINE)
    schema = structural_schema(kind)["properties"][part]
    fields = [path for path, _ in nodes(schema, part) if path != part and not path.endswith("[]")]
    assert rows == fields


def test_every_condition_is_explained() -> None:
    assert set(CONDITIONS) == set(ConditionType)


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
