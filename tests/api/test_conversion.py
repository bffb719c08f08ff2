"""Conversion of objects of v1alpha1 (tests/api/v1alpha1: main of 28 November 2026): the function, and `brokergroup convert`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from brokergroup_operator.api import names
from brokergroup_operator.api.conversion import OLD_API_VERSION, Report, converted
from brokergroup_operator.cli.main import app
from kube_sandbox.api_server.kinds.custom_resources import custom_resource_types
from tests.our_kinds import our_definitions

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).resolve().parents[2]
FORMER = Path(__file__).parent / "v1alpha1"
EXAMPLES = sorted(path.name for path in (FORMER / "examples").glob("*.yaml"))
Json = dict[str, Any]


def documents(path: Path) -> list[Any]:
    return list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))


def former_definitions() -> dict[str, Json]:
    found = [document for path in sorted((FORMER / "crds").glob("*.yaml")) for document in documents(path)]
    return {definition["spec"]["names"]["kind"]: definition for definition in found}


def old(kind: str = "BrokerGroup", *, metadata: Json | None = None, **parts: Any) -> Json:
    named = {"name": "orders", "namespace": "shop"} | (metadata or {})
    return {"apiVersion": OLD_API_VERSION, "kind": kind, "metadata": named, **parts}


def group(**spec: Any) -> Json:
    return old(spec={"nameServers": ["ns:9876"], **spec})


def carried(document: Any) -> tuple[Any, list[str]]:
    """Convert an object without problems; return it in v1beta1 with the notes."""
    report, before = Report(), copy.deepcopy(document)
    result = converted(document, report)
    assert report.problems == []
    assert document == before, "the input document is unchanged"
    return result, report.notes


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_former_example_becomes_the_present_one(name: str) -> None:
    result = [carried(document)[0] for document in documents(FORMER / "examples" / name)]
    assert result == documents(ROOT / "examples" / name)


def test_there_is_no_example_without_a_former_one() -> None:
    assert sorted(path.name for path in (ROOT / "examples").glob("*.yaml")) == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_v1beta1_stays_as_it_is(name: str) -> None:
    for document in documents(ROOT / "examples" / name):
        assert carried(document) == (document, [])


def sample(schema: Json) -> Any:
    """Return a value with every field; any value of the right kind will do, as no rule checks it."""
    if "enum" in schema:
        return schema.get("default", schema["enum"][-1])
    match schema.get("type"):
        case "object" if "properties" in schema:
            return {name: sample(child) for name, child in schema["properties"].items()}
        case "object":
            return {"a": sample(schema["additionalProperties"])} if "additionalProperties" in schema else {"a": "b"}
        case "array":
            return [sample(schema["items"])]
        case other:
            return {"integer": 7, "boolean": True}.get(str(other), "a")


@pytest.mark.parametrize("kind", list(former_definitions()))
def test_every_field_of_v1alpha1_has_its_place_in_v1beta1(kind: str) -> None:
    """The API server silently drops a field that v1beta1 doesn't know."""
    schema = former_definitions()[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    document = sample(schema) | {"apiVersion": OLD_API_VERSION, "kind": kind}
    report = Report()
    result, told = converted(document, report), report.notes
    assert len(report.problems) <= 1, "no rule checks the sample's values"
    [definition] = [one for one in our_definitions() if one["spec"]["names"]["kind"] == kind]
    [resource] = custom_resource_types(definition)
    assert resource.behaviour.drop_unknown_fields(copy.deepcopy(result)) == []
    assert kind == "BrokerGroupState" or told


def test_a_field_keeps_its_place() -> None:
    result, _ = carried(
        group(
            implementation="rocketmq",
            scheduling={"topologyKey": "rack", "nodeSelector": {"a": "b"}, "antiAffinity": "Required"},
            security={"certificateSecretName": "c", "signature": "Off", "credentialsSecretName": "k"},
            replicas=3,
        )
    )
    assert json.dumps(result["spec"]) == json.dumps(
        {
            "nameServers": ["ns:9876"],
            "implementation": "Java",
            "antiAffinity": {"topologyKey": "rack", "type": "Required"},
            "podTemplate": {"spec": {"nodeSelector": {"a": "b"}}},
            "security": {
                "certificateSecretRef": {"name": "c"},
                "signature": "Disabled",
                "credentialsSecretRef": {"name": "k"},
            },
            "replicas": 3,
        }
    )


def test_scheduling_joins_the_pod_template_that_is_there() -> None:
    former = group(podTemplate={"metadata": {"labels": {"a": "b"}}}, scheduling={"priorityClassName": "high"})
    assert carried(former)[0]["spec"] == {
        "nameServers": ["ns:9876"],
        "podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"priorityClassName": "high"}},
    }


# `failover` of v1alpha1, the part that is left, and the fields with a warning.
TIMES: list[tuple[Json, Json | None, list[str]]] = [
    ({}, {}, []),
    ({"heartbeatIntervalMilliseconds": 500}, None, []),
    ({"heartbeatIntervalMilliseconds": 400}, None, ["heartbeatIntervalMilliseconds (400) is dropped"]),
    ({"fenceTimeoutMilliseconds": 3000, "isolation": {"timeoutMilliseconds": 2500}}, None, []),
    (
        {"heartbeatTimeoutMilliseconds": 6000, "heartbeatIntervalMilliseconds": 1000, "fenceTimeoutMilliseconds": 6000},
        {"heartbeatTimeoutMilliseconds": 6000}, [],
    ),
    (
        {"heartbeatTimeoutMilliseconds": 6000, "fenceTimeoutMilliseconds": 3000}, {"heartbeatTimeoutMilliseconds": 6000},
        ["fenceTimeoutMilliseconds (3000) is dropped: it follows from heartbeatTimeoutMilliseconds, and is 6000"],
    ),
    (
        {"isolation": {"enabled": True, "timeoutMilliseconds": 1500}}, {"isolation": {"enabled": True}},
        ["isolation.timeoutMilliseconds (1500) is dropped"],
    ),
    (
        {"minimumHeartbeatTimeoutMilliseconds": 1500, "delaySeconds": 1}, {"delaySeconds": 1},
        ["minimumHeartbeatTimeoutMilliseconds (1500) is dropped"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("former", "left", "lines"), TIMES)
def test_times_that_follow_are_dropped_and_told_of_where_they_differ(
    former: Json, left: Json | None, lines: list[str]
) -> None:
    result, told = carried(group(failover=former))
    assert result["spec"].get("failover") == left
    assert len(told) == len(lines)
    for line, said in zip(lines, told, strict=True):
        assert f"BrokerGroup shop/orders: spec.failover.{line}" in said


def test_numbers_of_acknowledgements_are_dropped_and_told_of() -> None:
    former = {"minInSyncReplicas": 1, "inSyncReplicas": 2, "allAckInSyncStateSet": False}
    result, told = carried(group(durability="Fast", replication=former))
    assert result["spec"]["replication"] == {"minInSyncReplicas": 1}
    assert told == [
        "BrokerGroup shop/orders: spec.replication.inSyncReplicas (2) is dropped: it follows from durability",
        "BrokerGroup shop/orders: spec.replication.allAckInSyncStateSet (false) is dropped: it follows from durability",
    ]


def test_a_cluster_is_converted_in_all_its_parts() -> None:
    spec = {
        "nameServer": {"scheduling": {"antiAffinity": "Required"}},
        "proxy": {"scheduling": {"tolerations": [{"operator": "Exists"}]}},
        "brokerGroups": {"template": {"implementation": "rocketmq", "scheduling": {"nodeSelector": {"a": "b"}}}},
    }
    assert carried(old("RocketMQCluster", spec=spec))[0]["spec"] == {
        "nameServer": {"antiAffinity": {"type": "Required"}},
        "proxy": {"podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
        "brokerGroups": {"template": {"implementation": "Java", "podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}}},
    }


def test_a_record_is_the_same_in_both_versions() -> None:
    change = {"id": 5, "kind": "Failover", "phase": "Telling", "to": 1, "epoch": 7}
    record = {"clusterName": "DefaultCluster", "brokerName": "orders", "masterEpoch": 7, "change": change}
    former = old("BrokerGroupState", record=record)
    assert carried(former) == (former | {"apiVersion": names.API_VERSION}, [])


def test_metadata_stays_and_status_goes() -> None:
    owner = {"apiVersion": OLD_API_VERSION, "kind": "RocketMQCluster", "name": "shop", "uid": "u"}
    metadata = {
        "uid": "1",
        "resourceVersion": "7",
        "finalizers": ["f"],
        "ownerReferences": [owner],
        "labels": {"a": "b"},
    }
    former = old(metadata=metadata, spec={"nameServers": ["ns:9876"]}, status={"phase": "Ready"})
    result, told = carried(former)
    assert "status" not in result
    assert result["metadata"] == former["metadata"] | {"ownerReferences": [owner | {"apiVersion": names.API_VERSION}]}
    assert told == ["BrokerGroup shop/orders: status is dropped: the operator writes it"]


def test_managers_of_fields_stay_and_have_the_new_version() -> None:
    """Managers keep no removed fields. Without managers an applied status would never lose an entry."""
    status: Json = {"f:masterEpoch": {}, "f:members": {'k:{"brokerId":1}': {".": {}, "f:pod": {}, "f:addresses": {}}}}
    spec = {"f:scheduling": {"f:nodeSelector": {"f:disk": {}}}, "f:config": {"f:a": {}}, "f:replicas": {}}
    labels: Json = {"f:metadata": {"f:labels": {".": {}, "f:a": {}}, "f:finalizers": {'v:"a"': {}}}}
    entry = {"manager": "a", "operation": "Apply", "apiVersion": OLD_API_VERSION, "fieldsType": "FieldsV1"}
    other = {"manager": "b", "operation": "Update", "apiVersion": "brokergroup.dev/v9", "fieldsV1": {"f:x": {}}}
    fields = [entry | {"fieldsV1": labels | {"f:spec": spec, "f:status": status}}, other]
    result, _ = carried(group() | {"metadata": {"name": "orders", "managedFields": fields}})
    kept = {
        "f:spec": {"f:config": {"f:a": {}}, "f:replicas": {}},
        "f:status": {"f:members": {'k:{"brokerId":1}': {".": {}, "f:pod": {}}}},
    }
    new = entry | {"apiVersion": names.API_VERSION, "fieldsV1": labels | kept}
    assert result["metadata"]["managedFields"] == [new, other]


def test_an_operation_that_is_over_is_not_to_be_done_again() -> None:
    asked = {"type": "Restart", "brokerGroupRef": {"name": "orders"}, "restart": {"brokerId": 1}}
    former = old("BrokerGroupOperation", spec=asked, status={"phase": "Succeeded"})
    result, told = carried(former)
    assert result["spec"] == former["spec"]
    assert "status.phase is Succeeded: create it nowhere anew" in told[0]


def test_what_kubectl_compares_the_next_manifest_with_is_converted_too() -> None:
    key = "kubectl.kubernetes.io/last-applied-configuration"
    applied = group(implementation="replica")
    result, _ = carried(group() | {"metadata": {"name": "orders", "annotations": {key: json.dumps(applied)}}})
    assert json.loads(result["metadata"]["annotations"][key]) == carried(applied)[0]
    result, told = carried(group() | {"metadata": {"name": "orders", "annotations": {key: "{", "a": "b"}}})
    assert result["metadata"]["annotations"] == {"a": "b"}
    assert "can't be converted" in told[0]


def test_lists_are_converted_item_by_item_and_other_kinds_left_alone() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"scheduling": 1}}
    mine = carried(group(implementation="replica"))[0]
    whole, _ = carried({"apiVersion": "v1", "kind": "List", "items": [pod, group(implementation="replica")]})
    assert whole == {"apiVersion": "v1", "kind": "List", "items": [pod, mine]}
    whole, _ = carried(
        {"apiVersion": OLD_API_VERSION, "kind": "BrokerGroupList", "items": [group(implementation="replica")]}
    )
    assert whole == {"apiVersion": names.API_VERSION, "kind": "BrokerGroupList", "items": [mine]}
    for other in (None, "text", ["a"], {"kind": "Deployment", "apiVersion": "apps/v1"}):
        assert carried(other) == (other, [])


# Objects that can't be converted, with their error line.
PROBLEMS: list[tuple[Json, str]] = [
    (group(implementation="kafka"), 'spec.implementation is "kafka", expected one of rocketmq, replica'),
    (group(implementation=True), "spec.implementation is true, expected one of rocketmq, replica"),
    (group(security={"signature": False}), "spec.security.signature is false, expected one of Off, Accepted, Required"),
    (group(security={"credentialsSecretName": 5}), "spec.security.credentialsSecretName is 5, expected the name of a Secret"),
    (group(security=[]), "spec.security is [], expected a map"),
    (group(scheduling={"nodeName": "a"}), 'spec.scheduling.nodeName is "a", expected one of antiAffinity, topologyKey'),
    (group(scheduling="a"), 'spec.scheduling is "a", expected a map'),
    (group(nameServers=[]), "spec.nameServers is [], expected a NameServer as host:port"),
    (old(spec={}), "spec.nameServers is null, expected a NameServer as host:port"),
    (
        group(failover={"heartbeatTimeoutMilliseconds": "3s"}),
        'spec.failover.heartbeatTimeoutMilliseconds is "3s", expected a number of milliseconds',
    ),
    (group(replicas=99), "spec.replicas is 99, expected int <= 16"),
    (group(replicas="three"), 'spec.replicas is "three", expected int, got str'),
    (group(nameServers=["ns:9876", 5]), "spec.nameServers[1] is 5, expected str"),
    (group(config={"a": 1}), 'spec.config[...] is {"a": 1}, expected str'),
    (group(durability="Safe"), 'spec.durability is "Safe", expected one of Available, Fast, Strict'),
    (group(jvm=[]), "spec.jvm is [], expected object"),
    (old(), "spec is null, expected a value"),
    (old("BrokerGroupOperation", spec={"type": "Restart"}), "spec.brokerGroupRef is null, expected a value"),
    (
        old("RocketMQCluster", spec={"brokerGroups": {"template": {"replicas": 0}}}),
        "spec.brokerGroups.template.replicas is 0, expected int >= 1",
    ),
    (old("BrokerGroupState", record={"masterEpoch": -1}), "record.masterEpoch is -1, expected int >= 0"),
    (old("BrokerGroupPlan"), 'kind is "BrokerGroupPlan", expected one of BrokerGroup, RocketMQCluster'),
    (old("RocketMQCluster", spec={"proxy": {"scheduling": {"a": 1}}}), "spec.proxy.scheduling.a is 1, expected one of"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "line"), PROBLEMS, ids=[line for _, line in PROBLEMS])
def test_what_cannot_be_carried_over_is_named_with_its_value(document: Json, line: str) -> None:
    report = Report()
    converted(document, report)
    [said] = report.problems
    assert f"{document['kind']} shop/orders: {line}" in said


def test_a_python_group_needs_no_name_server() -> None:
    assert carried(old(spec={"implementation": "replica"}))[0]["spec"] == {"implementation": "Python"}


def definitions() -> Iterator[tuple[Json, Json]]:
    """Return each former definition with the present one of its kind."""
    present = {definition["spec"]["names"]["kind"]: definition for definition in our_definitions()}
    for kind, definition in former_definitions().items():
        yield definition, present[kind]


def test_a_definition_stores_the_new_version_and_lists_the_former_one() -> None:
    """The API server refuses a definition without a version in which an object is stored."""
    for former, present in definitions():
        result, _ = carried(former | {"status": {"storedVersions": ["v1alpha1"]}})
        new, listed = result["spec"]["versions"]
        assert new == present["spec"]["versions"][0]
        assert (new["served"], new["storage"]) == (True, True)
        assert listed == former["spec"]["versions"][0] | {"served": False, "storage": False}
        assert result["metadata"] == former["metadata"]
        assert carried(result) == (result, []), "a second conversion changes nothing"
        assert carried(present) == (present, [])


OLD_GROUP = """\
# The group of the orders,
# in production.
apiVersion: brokergroup.dev/v1alpha1
kind: BrokerGroup
metadata: {name: orders}
spec:
  implementation: replica  # to be Java one day
  replicas: 3
"""
OTHER = """\
apiVersion: v1
kind: ConfigMap   # as it is
metadata: {name: a}
data: {at: 2030-01-01T02:00:00Z, "y": 'on'}
"""
BAD = OLD_GROUP.replace("replica ", "kafka ")


def run(*arguments: str, stdin: str = "") -> Any:
    return CliRunner().invoke(app, ["convert", *arguments], input=stdin)


def test_standard_input_to_standard_output() -> None:
    result = run("-", stdin=f"{OLD_GROUP}---\n{OTHER}")
    assert result.exit_code == 0, result.output
    assert result.stderr == "BrokerGroup orders: spec.implementation replica is Python\n"
    head, _, rest = result.stdout.partition("---\n")
    assert head.startswith("# The group of the orders,\n# in production.\napiVersion: brokergroup.dev/v1beta1\n")
    assert yaml.safe_load(head)["spec"] == {"implementation": "Python", "replicas": 3}
    assert rest == OTHER, "the text is unchanged"


def test_json_and_a_list_as_kubectl_prints_it() -> None:
    items = [yaml.safe_load(OLD_GROUP), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}]
    result = run("-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert result.exit_code == 0, result.output
    first, second = yaml.safe_load(result.stdout)["items"]
    assert (first["apiVersion"], first["spec"]["implementation"]) == ("brokergroup.dev/v1beta1", "Python")
    assert second == items[1]


def test_several_files_are_one_stream(tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text(OLD_GROUP.rstrip("\n"), encoding="utf-8")
    result = run(*map(str, files))
    assert [one["spec"]["implementation"] for one in yaml.safe_load_all(result.stdout)] == ["Python", "Python"]
    assert files[0].read_text(encoding="utf-8") == OLD_GROUP.rstrip("\n")


def test_in_place(tmp_path: Path) -> None:
    file, other = tmp_path / "group.yaml", tmp_path / "other.yaml"
    file.write_text(OLD_GROUP, encoding="utf-8")
    other.write_text(OTHER, encoding="utf-8")
    result = run("--in-place", str(file), str(other))
    assert (result.exit_code, result.stdout) == (0, "")
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["implementation"] == "Python"
    assert other.read_text(encoding="utf-8") == OTHER
    once = file.read_text(encoding="utf-8")
    assert run("--in-place", str(file)).exit_code == 0
    assert file.read_text(encoding="utf-8") == once


@pytest.mark.parametrize("options", [(), ("--in-place",)])
def test_nothing_is_written_if_one_value_can_not_be_carried_over(tmp_path: Path, options: tuple[str, ...]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(OLD_GROUP, encoding="utf-8")
    bad.write_text(BAD, encoding="utf-8")
    result = run(*options, str(good), str(bad))
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'BrokerGroup orders: spec.implementation is "kafka", expected one of rocketmq, replica' in result.stderr
    assert (good.read_text(encoding="utf-8"), bad.read_text(encoding="utf-8")) == (OLD_GROUP, BAD)


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (("-",), "a: [1", "-: no YAML"),
        (("/no/such/file",), "", "/no/such/file"),
        (("--in-place", "-"), OLD_GROUP, "expected files"),
    ],
)
def test_what_can_not_be_read_is_named(arguments: tuple[str, ...], stdin: str, complaint: str) -> None:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 2
    assert complaint in result.stderr


TEXTS = (
    "2030-01-01T02:00:00Z", "12:30:45", "1e3", "y", "Off", "off", "~", "null", "0x1F", "5.5.0", "1.5", "007", "+1", ".5", "a: b",
    "- a", "# a", "", " a", "a ",
    "two\nlines\n", "a\tb", "8Gi", "1E", "ns:9876", "'", '"', "\u00e9", "@a", "!a", "&a", "*a", "%a", "=",
)  # fmt: skip


def test_a_text_stays_a_text_whoever_reads_it() -> None:
    """A quoted text stays quoted: other parsers read 1e3 as a number, and y as true."""
    former = yaml.safe_load(OLD_GROUP)
    former["spec"]["scheduling"] = {"affinity": {f"k{number}": text for number, text in enumerate(TEXTS)}}
    result = run("-", stdin=json.dumps(former))
    affinity = yaml.safe_load(result.stdout)["spec"]["podTemplate"]["spec"]["affinity"]
    assert tuple(affinity.values()) == TEXTS
    bare = [line.partition(": ")[2] for line in result.stdout.splitlines() if line.startswith("        k")]
    assert {text for text in bare if text[:1] not in "'|\""} == {"5.5.0", "8Gi"}


def test_values_are_read_as_kubernetes_reads_them() -> None:
    """In Kubernetes' YAML a date is a text, and so is a value like hours and minutes."""
    tail = "at: 2030-01-01T02:00:00Z, hours: 12:30:45, many: 12, half: 0.5, yes_: yes"
    result = run("-", stdin=f"{OLD_GROUP}  scheduling:\n    affinity: {{{tail}}}\n")
    expected = {"at": "2030-01-01T02:00:00Z", "hours": "12:30:45", "many": 12, "half": 0.5, "yes_": True}
    assert yaml.safe_load(result.stdout)["spec"]["podTemplate"]["spec"]["affinity"] == expected
