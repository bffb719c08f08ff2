"""The small files: Java's formats, and what is refused instead of being taken for new."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
    from pathlib import Path

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
        with pytest.raises(StoreFileError, match=message) as told:
            read(path)
        assert str(path) in str(told.value), content


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
