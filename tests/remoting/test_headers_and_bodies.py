"""Typed headers and bodies: defaults as in Java, tolerance as in Java, and the shapes both readers of a body need."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketmq_remoting import broker_protocol as bp
from rocketmq_remoting import controller_protocol as cp
from rocketmq_remoting.client_protocol import (
    GetMaxOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import (
    ExtFieldsHeader,
    JsonBody,
    _columns,
    decode_properties,
    dump_json,
    encode_properties,
    load_json,
    quote_number_keys,
)
from tests.support.draws import examples

HEADER_CLASSES = [*ExtFieldsHeader.__subclasses__(), *SendMessageRequestHeader.__subclasses__()]
WIRE_NAMES = {
    header_class: [column.wire_name for column in _columns(header_class).each] for header_class in HEADER_CLASSES
}
BODY_CLASSES = [each for each in JsonBody.__subclasses__() if each.__module__.startswith("rocketmq_remoting.")]


def values_of(header_class: type[ExtFieldsHeader]) -> st.SearchStrategy[ExtFieldsHeader]:
    """Headers with every field set to anything its type allows."""
    hints = typing.get_type_hints(header_class, include_extras=True)
    return st.builds(header_class, **{name: _values(hints[name]) for name in header_class.__struct_fields__})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    options = typing.get_args(hint) if type(None) in typing.get_args(hint) else (hint,)
    return st.one_of(*(_value(option) for option in options))


def _value(kind: Any) -> st.SearchStrategy[Any]:
    if kind is type(None):
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text()
    [bounds] = kind.__metadata__
    return st.integers(bounds.ge, bounds.le)


@pytest.mark.sampled
@settings(max_examples=examples(100, 300))
@given(st.sampled_from(HEADER_CLASSES).flatmap(values_of))
def test_a_header_is_read_as_it_was_written(header: ExtFieldsHeader) -> None:
    assert type(header).decode(header.encode()) == header


@pytest.mark.sampled
@settings(max_examples=examples(100, 300))
@given(st.sampled_from(HEADER_CLASSES), st.none() | st.dictionaries(st.text(), st.text()), st.text())
def test_no_ext_fields_can_make_a_header_fail(
    header_class: type[ExtFieldsHeader], ext_fields: dict[str, str] | None, text: str
) -> None:
    header_class.decode(ext_fields)
    header_class.decode(dict.fromkeys(WIRE_NAMES[header_class], text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", 12),
        ("-1", -1),
        ("+7", 7),
        ("007", 7),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("1" * 5000, None),
        ("", None),
        (" 1", None),
        ("1_0", None),
        ("1.0", None),
        ("0x1", None),
        ("null", None),
    ],
)
def test_numbers_parse_as_java_parses_them(text: str, expected: int | None) -> None:
    """A header without booleans is read in one step where it can be."""
    assert cp.ElectMasterRequestHeader.decode({"brokerId": text}).broker_id == expected
    assert cp.BrokerHeartbeatRequestHeader.decode({"brokerId": text}).broker_id == expected


@pytest.mark.sampled
@settings(max_examples=examples(200, 2000))
@given(
    st.sampled_from([header for header in HEADER_CLASSES if _columns(header).numbers is not None]),
    st.data(),
)
def test_a_header_that_is_read_in_one_step_is_the_same_as_field_by_field(
    header_class: type[ExtFieldsHeader], data: st.DataObject
) -> None:
    numbers = (
        st.from_regex(r"\A[-+ ]?[0-9.eE_xX]{0,20}\Z")
        | st.integers().map(str)
        | st.sampled_from(["null", "true", "1e3"])
    )
    names = st.sampled_from([*WIRE_NAMES[header_class], "unknown"])
    ext_fields = data.draw(st.dictionaries(names, numbers | st.text(max_size=3)))
    read = header_class.decode(ext_fields)
    by_field = {
        column.name: value
        for column in _columns(header_class).each
        if column.wire_name in ext_fields and (value := column.parse(ext_fields[column.wire_name])) is not None
    }
    assert read == header_class(**by_field)


def test_an_integer_beyond_int32_keeps_the_default() -> None:
    read = cp.AlterSyncStateSetRequestHeader.decode({"masterEpoch": "2147483648", "masterBrokerId": "2147483648"})
    assert (read.master_epoch, read.master_broker_id) == (None, 2**31)


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("TRUE", True), ("yes", False), ("1", False), ("", False)]
)
def test_booleans_parse_as_java_parses_them(text: str, expected: bool) -> None:
    assert cp.ElectMasterRequestHeader.decode({"designateElect": text}).designate_elect is expected


def test_defaults_are_those_of_the_java_classes() -> None:
    """A heartbeat, and malformed input."""
    assert cp.ElectMasterRequestHeader.decode(None) == cp.ElectMasterRequestHeader(
        cluster_name="", broker_name="", broker_id=None
    )
    assert cp.AlterSyncStateSetRequestHeader.decode({}).broker_name is None
    heartbeat = cp.BrokerHeartbeatRequestHeader.decode({"brokerId": "1"})
    assert (heartbeat.epoch, heartbeat.max_offset, heartbeat.confirm_offset) == (-1, -1, -1)
    assert (heartbeat.heartbeat_timeout_ms, heartbeat.election_priority) == (10_000, 2**31 - 1)
    assert GetMaxOffsetRequestHeader.decode({}).committed
    assert cp.AlterSyncStateSetResponseHeader().encode() == {"newSyncStateSetEpoch": "0"}
    assert cp.ElectMasterResponseHeader().encode() == {}


def test_names_of_a_registration_are_javas() -> None:
    written = bp.RegisterBrokerRequestHeader(heartbeat_timeout_ms=1, ha_server_addr="h", body_crc32=2).encode()
    assert written == {"heartbeatTimeoutMillis": "1", "haServerAddr": "h", "compressed": "false", "bodyCrc32": "2"}


def test_a_send_is_written_under_full_or_one_letter_names() -> None:
    full = SendMessageRequestHeader(topic="T", queue_id=1, properties="k\x01v\x02", batch=False)
    short = SendMessageRequestHeaderV2(topic="T", queue_id=1, properties="k\x01v\x02", batch=False)
    assert short.encode() == {"b": "T", "e": "1", "i": "k\x01v\x02", "m": "false"}
    assert full.encode() == {"topic": "T", "queueId": "1", "properties": "k\x01v\x02", "batch": "false"}


def test_an_elect_answer_satisfies_both_readers() -> None:
    """The broker reads brokerMemberGroup and the set, mqadmin a bare member group (docs/reference/controller.md)."""
    body = cp.ElectMasterResponseBody(
        cp.BrokerMemberGroup("cl", "bn", {1: "1.1.1.9:1", 2: "1.1.1.2:1"}), frozenset({2})
    )
    addresses = {"1": "1.1.1.9:1", "2": "1.1.1.2:1"}
    assert json.loads(body.encode()) == {
        "brokerMemberGroup": {"brokerAddrs": addresses, "brokerName": "bn", "cluster": "cl"},
        "syncStateSet": [2], "brokerAddrs": addresses, "brokerName": "bn", "cluster": "cl",
    }  # fmt: skip
    assert cp.ElectMasterResponseBody.decode(body.encode()) == body


def test_an_elect_answer_without_a_new_master_is_the_set_alone() -> None:
    assert cp.ElectMasterResponseBody(sync_state_set=frozenset({2, 1})).encode() == b'{"syncStateSet":[1,2]}'


def test_replicas_info_leaves_out_the_master_that_is_not_and_never_the_lists() -> None:
    body = cp.BrokerReplicasInfoBody(
        {"bn": cp.ReplicasInfo(not_in_sync_replicas=(cp.ReplicaIdentity("bn", 1, "a:1", alive=True),))}
    )
    assert json.loads(body.encode()) == {
        "replicasInfoTable": {
            "bn": {
                "inSyncReplicas": [],
                "masterEpoch": 0,
                "notInSyncReplicas": [{"alive": True, "brokerAddress": "a:1", "brokerId": 1, "brokerName": "bn"}],
                "syncStateSetEpoch": 0,
            }
        }
    }


def test_numbers_in_quotes_are_numbers() -> None:
    read = cp.SyncStateSetBody.decode(b'{"syncStateSet":["1",2],"syncStateSetEpoch":"3","more":{}}')
    assert read == cp.SyncStateSetBody(frozenset({1, 2}), 3)


def test_cluster_info_and_routes_with_number_keys_are_read() -> None:
    cluster = bp.ClusterInfoBody.decode(
        b'{"brokerAddrTable":{"bn":{"brokerAddrs":{0:"10.0.0.1:10911",2:"{3:x,4:"},"brokerName":"bn","cluster":"cl"}},'
        b'"clusterAddrTable":{"cl":["bn"]}}'
    )
    assert cluster.broker_addr_table["bn"].broker_addrs == {0: "10.0.0.1:10911", 2: "{3:x,4:"}
    assert cluster.cluster_addr_table == {"cl": frozenset({"bn"})}
    route = bp.TopicRouteBody.decode(
        b'{"brokerDatas":[{"brokerAddrs":{0:"a:1", -1 :"b:1"},"brokerName":"bn","cluster":"cl","enableActingMaster":false}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"bn","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    assert route.broker_datas[0].broker_addrs == {0: "a:1", -1: "b:1"}
    assert route.queue_datas[0].perm == 6


def test_a_registration_says_what_the_name_server_needs() -> None:
    topics = bp.TopicConfigBody(topic_config_table={"T": bp.TopicConfig("T", 4, 4)})
    written = json.loads(bp.RegisterBrokerBody(topic_config_serialize_wrapper=topics).encode())
    assert written["filterServerList"] == []
    assert written["topicConfigSerializeWrapper"]["dataVersion"] == {"counter": 0, "stateVersion": 0, "timestamp": 0}
    assert written["topicConfigSerializeWrapper"]["topicConfigTable"]["T"] == {
        "attributes": {}, "order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
        "topicName": "T", "topicSysFlag": 0, "writeQueueNums": 4,
    }  # fmt: skip


def test_ha_status_without_a_client_part_is_read() -> None:
    status = bp.HARuntimeInfoBody.decode(b'{"master":true,"haConnectionInfo":[{"addr":"1.1.1.1:5","inSync":true}]}')
    assert status.ha_connection_info[0].in_sync
    assert status.ha_client_runtime_info.master_addr is None


@pytest.mark.parametrize(("body", "expected"), [(None, ()), (b"null", ()), (b"[]", ()), (b'["a","b"]', ("a", "b"))])
def test_broker_names(body: bytes | None, expected: tuple[str, ...]) -> None:
    assert cp.decode_broker_names(body) == expected


@pytest.mark.parametrize(
    "body",
    [None, b"{}", b"[]", b"null", b"1", b"x", b'{"syncStateSet":[1],', b'{"syncStateSet":null,"syncStateSetEpoch":1}',
     b'{"syncStateSet":[1.5]}', b'{"syncStateSet":["a"]}', b'{"syncStateSet":{}}', b"\xff", b"[" * 1_000_000,
     b'{"a":' * 1_000_000, b'"' + b'\\"' * 1_000_000, b"{1:" * 300_000],
    ids=lambda body: repr(body)[:20],
)  # fmt: skip
def test_a_bad_body_is_a_body_error(body: bytes | None) -> None:
    with pytest.raises(BodyError):
        cp.SyncStateSetBody.decode(body)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.sampled
@settings(max_examples=examples(100, 300))
@given(st.sampled_from(BODY_CLASSES), st.binary(max_size=60) | ANY_JSON.map(dump_json))
def test_any_body_is_read_or_a_body_error(body_class: type[JsonBody], data: bytes) -> None:
    try:
        read = body_class.decode(data)
    except BodyError:
        return
    assert body_class.decode(read.encode()) == read


MAPS_OF_LONG = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(-(10**9), 10**9), inner, max_size=3),
    max_leaves=10,
)


@given(MAPS_OF_LONG)
def test_number_keys_may_be_quoted_or_not(value: Any) -> None:
    written = dump_json(value)
    assert load_json(quote_number_keys(_as_java(value).encode())) == json.loads(written)
    assert load_json(written) == json.loads(written)


def _as_java(value: Any) -> str:
    """JSON with number keys unquoted, as fastjson writes maps of Long."""
    if isinstance(value, dict):
        members = (
            f"{key if isinstance(key, int) else json.dumps(key)}:{_as_java(member)}" for key, member in value.items()
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_as_java, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_properties_are_read_as_they_were_written(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_properties_of_every_syntax_are_read() -> None:
    text = b"# comment\n! another\n\n a = 1\r\nb:2\nc 3\nd\ne = x\\\n   y\nf=\\u0041\\t\\:\ng=a=b\n k\\ e\\=y = v"
    expected = {"a": "1", "b": "2", "c": "3", "d": "", "e": "xy", "f": "A\t:", "g": "a=b", "k e=y": "v"}
    assert decode_properties(text) == expected


def test_properties_are_written_as_java_writes_them() -> None:
    written = encode_properties({"minInSyncReplicas": "99", "brokerIP1": "10.0.0.1", "storePathRootDir": "/store"})
    assert written == b"brokerIP1=10.0.0.1\nminInSyncReplicas=99\nstorePathRootDir=/store\n"


@given(st.binary(max_size=100))
def test_any_properties_are_read_or_a_body_error(data: bytes) -> None:
    try:
        decode_properties(data)
    except BodyError:
        return
