"""Formats of records and of small files: bytes a Java 5.5.0 broker wrote, and what is refused instead of being taken for new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_remoting import message_record as mr
from rocketmq_remoting.address import plain_host
from rocketmq_remoting.client_protocol import (
    BatchedMessage,
    SendFields,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    decode_batch,
    encode_batch,
    read_send_fields,
)
from rocketmq_remoting.command import request
from rocketmq_remoting.serialization import _columns
from rocketmq_replica.controller.replicas_manager import IdentityFiles
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.log.epochs import NO_END, EpochCache, EpochEntry
from rocketmq_replica.log.side_files import (
    Checkpoint,
    CheckpointFile,
    DeletedTopics,
    crc_of,
    decode_epochs,
    encode_epochs,
    load_epochs,
    load_queue_offsets,
    save_epochs,
)
from rocketmq_replica.role_change import BrokerIdentity
from rocketmq_replica.tables import ConsumerOffsets, DelayOffsets, SubscriptionGroups
from rocketmq_replica.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Callable


RECORDED = Path(__file__).parent / "recordings" / "ha_frames.jsonl"
# What MessageDecoder.encode and createMessageId of RocketMQ 5.5.0 made of one message with these hosts.
OF_JAVA = [
    json.loads(line)
    for line in (Path(__file__).parent / "recordings" / "java_hosts.jsonl").read_text(encoding="utf-8").splitlines()
]
HOST = mr.Host("127.0.0.2", 31911)


def plain(physical_offset: int = 0, **changes: Any) -> bytes:
    """A record, but for the changes."""
    values: dict[str, Any] = {"topic": "T", "body": b"hello", "queue_id": 3, "queue_offset": 4, "store_timestamp_ms": 2}
    values |= {"born_timestamp_ms": 1, "born_host": HOST, "store_host": HOST, "properties": b"k\x01v\x02"}
    return mr.encode_record(physical_offset=physical_offset, **values | changes)


def recorded_log_bytes() -> list[tuple[int, bytes]]:
    """(physical offset, log bytes) of every transfer frame of the recording that carries any."""
    frames = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return [
        (frame["offset"], bytes.fromhex(frame["hex"])[36:])
        for frame in frames
        if frame.get("type") == "transfer" and frame["bodySize"] > 0
    ]


@pytest.mark.parametrize("java", OF_JAVA, ids=lambda java: f"{java['bornHost']} at {java['storeHost']}")
def test_hosts_of_both_families_are_written_and_read_as_java_does(java: dict[str, str | int]) -> None:
    born, store = (
        mr.Host(plain_host(str(java[name])), port) for name, port in (("bornHost", 40001), ("storeHost", 10911))
    )
    times = {"born_timestamp_ms": 1_790_000_000_000, "store_timestamp_ms": 1_790_000_000_007, "reconsume_times": 1}
    raw = plain(4660, topic="Topic", queue_offset=5, born_host=born, store_host=store, flag=7, **times)
    assert raw.hex() == java["hex"]
    read = mr.decode_record(raw)
    assert (read.born_host, read.store_host, read.sys_flag) == (born, store, java["sysFlag"])
    assert read.message_id == java["offsetMsgId"]
    entry = mr.inspect_entry(raw, 0, len(raw), physical_offset=4660)
    assert mr.inspect_entries(raw, physical_offset=4660) == ([entry], len(raw))
    assert (entry.size_bytes, entry.topic, entry.queue_offset) == (len(raw), "Topic", 5)


def test_records_written_by_java_are_written_again_byte_for_byte() -> None:
    recorded = recorded_log_bytes()
    assert len(recorded) > 5
    for offset, data in recorded:
        position = 0
        for message in mr.decode_records(data):
            assert message.physical_offset == offset + position
            again = encode_again(message)
            assert again == data[position : position + message.size_bytes]
            position += message.size_bytes


def encode_again(message: mr.StoredMessage) -> bytes:
    same = (
        "topic body queue_id queue_offset physical_offset born_timestamp_ms born_host store_timestamp_ms store_host"
        " flag sys_flag reconsume_times prepared_transaction_offset"
    )
    fields: dict[str, Any] = {name: getattr(message, name) for name in same.split()}
    return mr.encode_record(properties=message.properties_bytes, **fields)


hosts = st.builds(mr.Host, st.ip_addresses().map(str), st.integers(0, 65535))
names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    topic=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=300),
    body=st.binary(max_size=200),
    queue=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**62)),
    born=hosts,
    store=hosts,
    properties=st.dictionaries(names, names, max_size=4),
    flags=st.tuples(st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 1, 0x100])),
)
def test_what_is_encoded_is_decoded(
    topic: str, body: bytes, queue: tuple[int, int, int], born: mr.Host, store: mr.Host, properties: dict[str, str],
    flags: tuple[int, int],
) -> None:  # fmt: skip
    raw = plain(
        queue[2], topic=topic, body=body, queue_id=queue[0], queue_offset=queue[1], born_host=born, store_host=store,
        properties=mr.encode_properties(properties), flag=flags[0], sys_flag=flags[1],
    )  # fmt: skip
    message = mr.decode_record(raw)
    assert (message.topic, message.body, message.properties) == (topic, body, properties)
    assert (message.queue_id, message.queue_offset, message.physical_offset) == queue
    assert (message.born_host, message.store_host, message.flag) == (born, store, flags[0])
    assert message.magic == (mr.MAGIC_V1 if len(topic) <= 127 else mr.MAGIC_V2)
    entry = mr.inspect_entry(raw, 0, len(raw), physical_offset=queue[2])
    assert (entry.kind, entry.size_bytes, entry.store_timestamp_ms) == (mr.EntryKind.RECORD, len(raw), 2)
    assert encode_again(message) == raw


def test_every_flipped_byte_of_what_is_checked_is_noticed() -> None:
    """Lengths, magic, CRC, physical offset and body; the other fields carry no check sum in RocketMQ either."""
    raw = plain(500)
    checked = [*range(12), *range(28, 36), *range(84, 93), 93]
    for position in checked:
        torn = bytearray(raw)
        torn[position] ^= 0x41
        with pytest.raises(mr.MessageRecordError):
            mr.inspect_entry(bytes(torn), 0, len(torn), physical_offset=500)


def test_every_shortened_record_is_incomplete_or_corrupt() -> None:
    raw = plain()
    for length in range(len(raw)):
        with pytest.raises(mr.IncompleteRecordError):
            mr.inspect_entry(raw, 0, length, physical_offset=0)


@given(
    st.sampled_from([plain(), plain().replace(b"k\x01v\x02", b""), bytes(200)]),
    st.dictionaries(st.integers(0, 199), st.integers(0, 255), max_size=6),
    st.integers(0, 200),
)
def test_no_bytes_raise_anything_else(raw: bytes, changes: dict[int, int], end: int) -> None:
    """A slave closes its link for these errors, and recovery cuts there; any other would end the process."""
    data = bytearray(raw)
    for position, value in changes.items():
        if position < len(data):
            data[position] = value
    end = min(end, len(data))
    try:
        entry = mr.inspect_entry(memoryview(data)[:end], 0, end, physical_offset=0)
    except mr.MessageRecordError:
        return
    assert entry.kind is not mr.EntryKind.RECORD or entry.size_bytes <= end


@pytest.mark.parametrize("sys_flag", [mr.SYS_FLAG_BORN_HOST_V6, mr.SYS_FLAG_STORE_HOST_V6, 0x30])
def test_a_record_too_small_for_the_addresses_it_announces_is_corrupt(sys_flag: int) -> None:
    raw = bytearray(plain(body=b""))
    raw[36:40] = sys_flag.to_bytes(4, "big")
    with pytest.raises(mr.CorruptRecordError):
        mr.inspect_entry(bytes(raw), 0, len(raw), physical_offset=0)


def test_blank_and_end() -> None:
    blank = mr.encode_blank(40)
    assert mr.inspect_entry(blank, 0, 40, physical_offset=9) == mr.LogEntry(mr.EntryKind.BLANK, 40)
    assert mr.inspect_entry(bytes(40), 0, 40, physical_offset=9).kind is mr.EntryKind.END


def test_properties_refuse_the_separators() -> None:
    with pytest.raises(mr.MessageRecordError, match="separators"):
        mr.encode_properties({"a": "b\x02c"})


def test_batches_round_trip_and_refuse_torn_bytes() -> None:
    batch = [BatchedMessage(1, b"a", b"k\x01v\x02"), BatchedMessage(0, b"", b"")]
    raw = encode_batch(batch)
    assert decode_batch(raw) == batch
    whole = {0, 22 + 1 + 4}
    for length in set(range(len(raw))) - whole:
        with pytest.raises(mr.CorruptRecordError):
            decode_batch(raw[:length])


_FIELD_TEXT = st.one_of(
    st.none(), st.sampled_from(["", "0", "-1", "4", "true", "TRUE", "x", "2147483648", "9223372036854775808", " 1"])
)


@given(st.sampled_from([10, 310, 320]), st.lists(_FIELD_TEXT, min_size=14, max_size=14))
def test_the_fast_way_to_read_a_send_header_reads_what_the_slow_one_does(code: int, texts: list[str | None]) -> None:
    header_type = SendMessageRequestHeader if code == 10 else SendMessageRequestHeaderV2
    wire_names = [column.wire_name for column in _columns(header_type).each]
    ext_fields = {name: text for name, text in zip(wire_names, texts, strict=True) if text is not None}
    command = request(code, ext_fields=ext_fields)
    slow, fast = header_type.decode(ext_fields), read_send_fields(command)
    assert fast == SendFields(
        slow.topic or "", -1 if slow.queue_id is None else slow.queue_id, slow.sys_flag or 0, slow.born_timestamp or 0,
        slow.flag or 0, slow.properties or "", slow.reconsume_times or 0, bool(slow.batch),
        slow.default_topic_queue_nums,
    )  # fmt: skip


JAVA_FILE = b"2\n773307083\n7-7000\n8-8000\n"


def cache(*pairs: tuple[int, int]) -> EpochCache:
    each = EpochCache()
    for epoch, start in pairs:
        assert each.append(epoch, start)
    return each


def pairs(each: EpochCache) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in each.entries]


def test_the_check_sum_of_the_reference_file() -> None:
    assert crc_of("7-7000\n8-8000\n") == 773307083
    assert encode_epochs(cache((7, 7000), (8, 8000))) == JAVA_FILE
    assert pairs(decode_epochs(JAVA_FILE, "x")) == [(7, 7000), (8, 8000)]


def identity(path: Path) -> IdentityFiles:
    return IdentityFiles(path, cluster_name="DefaultCluster", broker_name="broker-a")


OF_DELETIONS = '{"deletedTopics": %s}'


@pytest.mark.parametrize(
    ("read", "message", "contents"),
    [
        (load_epochs, "expected|says 2 entries|check sum", [
            "", "2\n", "2\n773307083\n7-7000\n", "2\n773307084\n7-7000\n8-8000\n", "1\n0\nseven-7000\n", "\0\0\0\0",
            JAVA_FILE[:-3].decode(),
        ]),
        (lambda path: identity(path).load(), "expected cluster#broker#id", [
            "", "DefaultCluster#broker-a", "DefaultCluster#broker-a#x", "DefaultCluster#broker-a#0", "DefaultCluster#broker-a#²",
            "DefaultCluster#broker-a#" + "9" * 5000, "#broker-a#1", "\0\0\0\0",
        ]),
        (lambda path: identity(path).load(), "belongs to DefaultCluster#broker-b", ["DefaultCluster#broker-b#2"]),
        (DeletedTopics, "is no table of deleted topics", [
            "", "[]", "{}", *(OF_DELETIONS % text for text in (
                "[1]", '{"T": 1}', '{"T": [1, 2]}', '{"T": [5, 1, "0"]}', '{"T": [5, 1, 6]}', '{"T": [1e999, 1, 0]}',
                '{"T": [true, 1, 0]}',
            )), '{"deletedTopics": ' + 100_000 * "[",
        ]),
        (lambda path: SubscriptionGroups(path, now_ms=1), "is no table of consumer groups",
         ["", "[]", "{}", '{"subscriptionGroupTable": {"a": 1}}']),
        (DelayOffsets, "is no table of delay offsets", ['{"offsetTable"']),
        (ConsumerOffsets, "is no offset table", ['{"offsetTable": {"T@G": {"0": 1e999}}}']),
        (lambda path: Topics(path, system_topics=(), queue_count=1, now_ms=1), "is no topic table",
         ['{"topicConfigTable": {"T": {"readQueueNums": 1e999, "writeQueueNums": 1, "perm": 6}}}']),
        (load_queue_offsets, "is no table of queue offsets", ['{"nextOffsets": [["T", 0, 1e999]]}']),
    ],
    ids=["epochs", "identity", "another group's", "deletions", "groups", "delays", "offsets", "topics", "numbers"],
)  # fmt: skip
def test_a_torn_file_is_named_and_never_taken_for_a_new_one(
    tmp_path: Path, read: Callable[[Path], object], message: str, contents: list[str]
) -> None:
    path = tmp_path / "a-file"
    for content in contents:
        path.write_text(content)
        with pytest.raises(StoreFileError, match=message) as raised:
            read(path)
        assert str(path) in str(raised.value), content


def test_epochs_come_from_the_backup_where_the_file_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(JAVA_FILE[:-3])
    path.with_name(path.name + ".bak").write_bytes(JAVA_FILE)
    assert pairs(load_epochs(path)) == [(7, 7000), (8, 8000)]


def test_a_check_sum_of_zero_is_not_checked() -> None:
    assert pairs(decode_epochs(b"1\n0\n3-30\n", "x")) == [(3, 30)]


def test_an_empty_history_is_durable_too(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    save_epochs(path, cache((1, 0)))
    path.with_name(path.name + ".bak").write_bytes(JAVA_FILE)
    save_epochs(path, EpochCache())
    assert list(tmp_path.iterdir()) == []
    assert pairs(load_epochs(path)) == []


def test_append_refuses_what_is_not_newer_and_replaces_an_empty_epoch() -> None:
    each = cache((1, 0), (3, 100))
    assert not each.append(3, 200)
    assert not each.append(2, 200)
    assert not each.append(4, 99)
    assert each.append(4, 100), "upstream #9942: epoch 3 wrote nothing"
    assert pairs(each) == [(1, 0), (4, 100)]
    assert [entry.end_offset for entry in each.entries] == [100, NO_END]


def test_truncations_reopen_the_last_epoch() -> None:
    each = cache((1, 0), (2, 100), (3, 200))
    assert each.drop_beyond_offset(199)
    assert list(each.entries) == [EpochEntry(1, 0, 100), EpochEntry(2, 100, NO_END)]
    assert not each.drop_beyond_offset(149)
    assert each.drop_from_epoch(2)
    assert list(each.entries) == [EpochEntry(1, 0, NO_END)]
    each = cache((1, 0), (2, 100), (3, 200))
    assert each.drop_before_offset(100)
    assert pairs(each) == [(2, 100), (3, 200)]
    assert each.drop_beyond_offset(199)
    assert pairs(each) == [(2, 100)]


def test_an_offset_belongs_to_one_epoch() -> None:
    each = cache((1, 10), (2, 100))
    found = [each.find_by_offset(offset) for offset in (9, 10, 99, 100, 10**9)]
    assert [entry and entry.epoch for entry in found] == [None, 1, 1, 2, 2]


def test_identity_files_have_javas_form(tmp_path: Path) -> None:
    files = identity(tmp_path / "brokerIdentity")
    assert files.load() is None
    assert files.load_applied() is None
    applied = BrokerIdentity("DefaultCluster", "broker-a", 2, "10.0.0.5:10911;1700000000000")
    files.save_applied(applied)
    assert (tmp_path / "brokerIdentity-temp").read_text() == "DefaultCluster#broker-a#2#10.0.0.5:10911;1700000000000"
    assert files.load_applied() == applied
    files.confirm(applied)
    assert [path.name for path in tmp_path.iterdir()] == ["brokerIdentity"]
    assert (tmp_path / "brokerIdentity").read_text() == "DefaultCluster#broker-a#2"
    assert files.load() == BrokerIdentity("DefaultCluster", "broker-a", 2)


def test_the_checkpoint_is_javas(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert CheckpointFile(path).load() == Checkpoint()
    CheckpointFile(path).save(lambda: Checkpoint(confirm_offset=0x1234))
    content = path.read_bytes()
    assert len(content) == 4096
    assert content[32:40] == (0x1234).to_bytes(8, "big")
    assert CheckpointFile(path).load().confirm_offset == 0x1234
    path.write_bytes(content[:39])
    assert CheckpointFile(path).load() != Checkpoint(), "a damaged one must not say that nothing was ever confirmed"
