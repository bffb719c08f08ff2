"""A DLedger log becomes a log of the normal format: every message but for its place, and no more than one whole copy or none."""

from __future__ import annotations

import json
import mmap
import os
import resource
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.backup.copies import ATTEMPT, MANIFEST, read_manifest, restore
from brokergroup_operator.backup.files import BackupError, Store
from brokergroup_operator.backup.log_end import log_end
from brokergroup_operator.migrate.dledger_copy import LogWriter, Target, copy_store, missing_bytes
from brokergroup_operator.migrate.dledger_log import HEADER, ledger_of
from brokergroup_operator.migrate.dledger_store import MemberReport, survey
from brokergroup_operator.migrate.stores import Place, StoreError, inspect
from rocketmq_remoting.message_record import StoredMessage, decode_record, encode_blank
from tests.support.dledger_files import (
    FILE_BYTES,
    QUEUE_ENTRY,
    Sent,
    change,
    entry,
    recorded_store,
    write_member,
    write_queue,
)
from tests.support.locked_file import held_by_another_process

SENT = [Sent(queue=number % 2, offset=number // 2) for number in range(20)]
PREPARED = 4


def target_in(folder: Path) -> Target:
    return Target(claim=folder, name="orders/from-dledger", cluster_name="DefaultCluster", broker_name="broker-a")


def copied(store: Path, to: Path, others: tuple[MemberReport, ...] = ()) -> Path:
    copy_store(Place(store), survey(Place(store)), others, target_in(to))
    return target_in(to).folder


def messages_in(log: Path) -> list[StoredMessage]:
    """Return the messages of a normal commit log; fails unless each lies where it says."""
    found, end = [], log_end(log)
    for path in sorted(log.iterdir()):
        content, at = path.read_bytes(), 0
        while int(path.name) + at < end and struct.unpack_from(">i", content, at + 4) != struct.unpack_from(
            ">i", encode_blank(8), 4
        ):
            found.append(decode_record(content, at, physical_offset=int(path.name) + at))
            at += found[-1].size_bytes
    return found


def but_its_place(message: StoredMessage) -> tuple[object, ...]:
    held = vars(message) | {"physical_offset": None}
    return tuple(value for name, value in sorted(held.items()) if not name.startswith("_") and name != "properties")


def messages_of_ledger(store: Path, member: str) -> list[StoredMessage]:
    found = ledger_of(store / f"dledger-{member}" / "data")
    return [decode_record(bytes(one.body)) for one in found.entries() if one.message is not None]


def content_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_what_java_wrote_is_a_backup_that_a_group_begins_with(tmp_path: Path) -> None:
    store = recorded_store(tmp_path / "store")
    (store / "kvStore").mkdir()
    (store / "kvStore" / "CURRENT").write_text("popped")
    before = content_of(store)
    folder = copied(store, tmp_path / "claim")
    assert content_of(store) == before
    old, new = messages_of_ledger(store, "n1"), messages_in(folder / "commitlog")
    assert [but_its_place(one) for one in new] == [but_its_place(one) for one in old]
    assert len(new) == 71
    assert new[-1].physical_offset + new[-1].size_bytes == 26450
    manifest = restore(folder, Store.at(tmp_path / "disk", None), name="orders/from-dledger", implementation="Java")
    assert (manifest.offset, manifest.store_epoch, manifest.master_epoch) == (26450, 1, 1)
    assert manifest.broker_name == "broker-a"
    assert content_of(tmp_path / "disk" / "config") == content_of(store / "config")
    assert content_of(tmp_path / "disk" / "kvStore") == {"CURRENT": b"popped"}
    # The first claim is now a store as any other that is taken over.
    report = inspect(Place(tmp_path / "disk"))
    assert (report.begin, report.end, report.file_bytes, report.epochs) == (0, 26450, 8192, ((1, 0),))


@given(
    sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=30),
    noops=st.sets(st.integers(0, 29)),
    begin=st.sampled_from([0, 5 * FILE_BYTES]),
)
def test_each_message_is_there_once_in_order_with_its_queue_offset(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], noops: set[int], begin: int
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    sent = [
        Sent(queue=number % 3, body=bytes([65 + number]) * size, offset=7 + number) for number, size in enumerate(sizes)
    ]
    sent = [replace(one, topic="") if number in noops - {0} else one for number, one in enumerate(sent)]
    write_member(folder / "store", sent, begin=begin, first_index=11)
    found = messages_in(copied(folder / "store", folder / "claim") / "commitlog")
    expected = [(one.queue, one.offset, one.body) for one in sent if one.topic]
    assert [(one.queue_id, one.queue_offset, one.body) for one in found] == expected
    assert found[0].physical_offset == begin


def test_half_messages_and_other_flags_stay_as_they_are(tmp_path: Path) -> None:
    write_member(tmp_path / "store", [Sent(sys_flag=PREPARED), Sent(offset=1, sys_flag=8)])
    found = messages_in(copied(tmp_path / "store", tmp_path / "claim") / "commitlog")
    assert [one.sys_flag for one in found] == [PREPARED, 8]


def write_old_log(store: Path, *, whole: bool = True) -> bytes:
    """Write the file of a log from before DLedger, with one message."""
    old = Sent(topic="old").record(0)
    (store / "commitlog").mkdir(parents=True)
    file = old + encode_blank(FILE_BYTES - len(old)) if whole else old.ljust(FILE_BYTES, b"\0")
    (store / "commitlog" / f"{0:020d}").write_bytes(file)
    return file


def test_the_log_from_before_dledger_comes_first_as_it_is(tmp_path: Path) -> None:
    store = tmp_path / "store"
    file = write_old_log(store)
    write_member(store, SENT, begin=FILE_BYTES)
    write_queue(store, "old", 0, [0])
    report = survey(Place(store))
    assert (report.begin, report.old_files, report.messages) == (0, 1, 20)
    folder = copied(store, tmp_path / "claim")
    assert (folder / "commitlog" / f"{0:020d}").read_bytes() == file
    assert [one.topic for one in messages_in(folder / "commitlog")] == ["old"] + ["orders"] * 20
    assert entries_in(folder, "old", 0) == [(0, 200, 77)]


@pytest.mark.parametrize("fault", ["it ends early", "a file is missing between both"])
def test_a_log_from_before_dledger_that_is_not_whole(tmp_path: Path, fault: str) -> None:
    ends_early = fault == "it ends early"
    write_old_log(tmp_path, whole=not ends_early)
    write_member(tmp_path, SENT, begin=FILE_BYTES if ends_early else 2 * FILE_BYTES)
    with pytest.raises(StoreError, match="the log before it, in commitlog, ends at"):
        survey(Place(tmp_path))


def places_of(store: Path, queue: int) -> list[int]:
    """Return where the messages of a queue of `orders` lie, by the log."""
    found = messages_of_ledger(store, "n0")
    return [one.physical_offset for one in found if (one.topic, one.queue_id) == ("orders", queue)]


def write_queues(store: Path, count: int = 2, *, first: int = 0) -> None:
    """Write the queues of `orders` as the log has them."""
    for queue in range(count):
        found = [one for one in messages_of_ledger(store, "n0") if (one.topic, one.queue_id) == ("orders", queue)]
        places = [one.physical_offset for one in found]
        write_queue(store, "orders", queue, places, size=found[0].size_bytes, first=first)


def entries_in(folder: Path, topic: str, queue: int) -> list[tuple[int, int, int]]:
    [file] = sorted((folder / "store" / "consumequeue" / topic / str(queue)).iterdir())
    content = file.read_bytes()
    found = (QUEUE_ENTRY.unpack_from(content, at) for at in range(0, len(content), QUEUE_ENTRY.size))
    return [one for one in found if one[1]]


@pytest.mark.parametrize("first", [0, 1000])
def test_consume_queues_name_the_new_places_and_keep_the_rest(tmp_path: Path, first: int) -> None:
    store = tmp_path / "store"
    write_member(store, [replace(one, offset=first + one.offset) for one in SENT], begin=5 * FILE_BYTES)
    size = messages_of_ledger(store, "n0")[0].size_bytes
    write_queues(store, first=first)
    # All that a queue had was deleted: its next offset must not begin at 0 again.
    write_queue(store, "gone", 3, [100, 300], first=1000)
    write_queue(store, "never", 0, [])
    folder = copied(store, tmp_path / "claim")
    new = messages_in(folder / "commitlog")
    for queue in range(2):
        expected = [(one.physical_offset, size, 77) for one in new if one.queue_id == queue]
        assert entries_in(folder, "orders", queue) == expected
    assert entries_in(folder, "gone", 3) == [(100, 200, 77), (300, 200, 77)]
    assert entries_in(folder, "never", 0) == []


def test_java_wrote_the_queues_of_the_recorded_log_as_they_are_copied(tmp_path: Path) -> None:
    folder = copied(recorded_store(tmp_path / "store"), tmp_path / "claim")
    by_queue: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for one in messages_in(folder / "commitlog"):
        by_queue.setdefault((one.topic, one.queue_id), []).append((one.physical_offset, one.size_bytes))
    assert len(by_queue) == 6
    for (topic, queue), expected in by_queue.items():
        assert [one[:2] for one in entries_in(folder, topic, queue)] == expected


def test_a_queue_that_has_more_than_the_log_says_that_its_end_is_lost(tmp_path: Path) -> None:
    """An entry that is missing as a whole, the last one, leaves no trace in the log."""
    end = write_member(tmp_path, SENT)
    size = len(SENT[-1].record(0))
    write_queues(tmp_path)
    assert survey(Place(tmp_path)).messages == 20
    change(tmp_path, end - size - HEADER.size, bytes(size + HEADER.size))
    with pytest.raises(StoreError, match=r"orders/1 has 10 messages.*and the log has 9"):
        survey(Place(tmp_path))


def test_queues_that_do_not_fit_the_log(tmp_path: Path) -> None:
    write_member(tmp_path / "n0", SENT)
    places, size = [places_of(tmp_path / "n0", queue) for queue in range(2)], len(SENT[0].record(0))
    for name, first, second, said in (
        ("later", places[0], [*places[1][:4], places[1][6], *places[1][5:]], "message 4 lies at"),
        ("hole", [*places[0][:2], 0, *places[0][3:]], places[1], "and no queue has that at"),
    ):
        write_member(tmp_path / name, SENT)
        for queue, held in enumerate((first, second)):
            write_queue(tmp_path / name, "orders", queue, held, size=size)
        with pytest.raises(StoreError, match=said):
            survey(Place(tmp_path / name))


def test_queues_that_lag_and_messages_that_no_queue_has(tmp_path: Path) -> None:
    """The broker adds the last ones itself. A message with the number of an earlier one was never seen."""
    later = [Sent(queue=0, offset=10 + number) for number in range(20)]
    end = write_member(tmp_path, [*SENT, Sent(queue=0, offset=3), *later])
    places = [places_of(tmp_path, queue) for queue in range(2)]
    size = len(SENT[0].record(0))
    write_queue(tmp_path, "orders", 0, [*places[0][:10]], size=size)
    write_queue(tmp_path, "orders", 1, places[1], size=size)
    found = survey(Place(tmp_path))
    first = places[0][11]
    assert (found.hidden, found.undispatched_files) == (1, end // FILE_BYTES - first // FILE_BYTES + 1)


@pytest.mark.parametrize(
    ("checkpoint", "waiting"),
    [(None, 2), ((5_000, 0, 1, 1), 1), ((1_500, 0, 2, 2), 1), ((5_000, 0, 2, 2), 0)],
    ids=["no checkpoint", "one is not in the wheel yet", "one is not due yet", "all delivered"],
)
def test_delayed_messages_in_the_timer_wheel_are_counted(
    tmp_path: Path, checkpoint: tuple[int, ...] | None, waiting: int
) -> None:
    timers = [Sent(topic="rmq_sys_wheel_timer", offset=number, due_ms=1000 * (number + 1)) for number in range(2)]
    write_member(tmp_path, [*SENT, *timers])
    if checkpoint is not None:
        (tmp_path / "config" / "timercheck").write_bytes(struct.pack(">qqqq", *checkpoint).ljust(4096, b"\0"))
    assert survey(Place(tmp_path)).timers == waiting


def test_what_a_store_says_of_its_settings(tmp_path: Path) -> None:
    write_member(tmp_path, SENT)
    topics = {"a": {"attributes": {"cleanup.policy": "COMPACTION"}}, "b": {"attributes": {}}}
    (tmp_path / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{4:3,5:1}}')
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"a@g":{0:10,1:7},"b@g":{0:1}}}')
    (tmp_path / "rocksdbstore").mkdir()
    (tmp_path / "rocksdbstore" / "000004.log").write_text("")
    (tmp_path / "mine").write_text("a file")
    found = survey(Place(tmp_path))
    assert (found.settings.topics, found.settings.delayed, found.settings.consumed) == (2, 4, 18)
    assert (found.compacted, found.left_out) == (("a",), ("mine",))
    (tmp_path / "rocksdbstore" / "000004.log").write_text("rows")
    assert survey(Place(tmp_path)).left_out == ("mine", "rocksdbstore")


@pytest.mark.parametrize("content", ['{"TABLE":', '{"TABLE":[]}', '{"TABLE":{"1":"x"}}', '{"TABLE":{"1":[1]}}'])
@pytest.mark.parametrize("file", ["topics.json", "consumerOffset.json", "delayOffset.json"])
def test_settings_that_are_damaged(tmp_path: Path, file: str, content: str) -> None:
    write_member(tmp_path, SENT)
    table = "topicConfigTable" if file == "topics.json" else "offsetTable"
    (tmp_path / "config" / file).write_text(content.replace("TABLE", table))
    with pytest.raises(StoreError, match=f"config/{file} is damaged"):
        survey(Place(tmp_path))


def test_a_broker_runs_on_the_store(tmp_path: Path) -> None:
    write_member(tmp_path / "store", SENT)
    report = survey(Place(tmp_path / "store"))
    with held_by_another_process(tmp_path / "store" / "lock"):
        with pytest.raises(StoreError, match="a broker runs on this store"):
            survey(Place(tmp_path / "store"))
        with pytest.raises(StoreError, match="a broker runs on this store"):
            copy_store(Place(tmp_path / "store"), report, (), target_in(tmp_path / "claim"))
    assert not (tmp_path / "claim").exists()


def test_a_store_that_has_changed_since_its_report_makes_no_backup(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_member(store, SENT)
    report = survey(Place(store))
    write_member(store, [*SENT, Sent(offset=10)])
    with pytest.raises(StoreError, match="is not as its report says"):
        copy_store(Place(store), report, (), target_in(tmp_path / "claim"))
    folder = target_in(tmp_path / "claim").folder
    assert (folder / ATTEMPT).exists()
    with pytest.raises(BackupError, match="torn"):
        restore(folder, Store.at(tmp_path / "disk", None), name="orders/from-dledger", implementation="Java")
    # The next attempt makes it anew, of the store as it is.
    assert len(messages_in(copied(store, tmp_path / "claim") / "commitlog")) == 21
    assert not (folder / ATTEMPT).exists()


def test_done_again_it_is_the_same_copy_and_another_log_is_refused(tmp_path: Path) -> None:
    write_member(tmp_path / "one", SENT)
    write_member(tmp_path / "two", SENT[:5])
    folder = copied(tmp_path / "one", tmp_path / "claim")
    before = content_of(folder)
    assert content_of(copied(tmp_path / "one", tmp_path / "claim")) == before
    with pytest.raises(StoreError, match="is another copy"):
        copied(tmp_path / "two", tmp_path / "claim")
    assert content_of(folder) == before
    assert (folder / MANIFEST).exists()


def test_a_member_that_is_behind_and_differs_within_its_last_file_is_noticed_while_copying(tmp_path: Path) -> None:
    """Its file ends earlier, so only the copy, which passes there, can compare the bytes up to it."""
    write_member(tmp_path / "n0", SENT)
    for name, messages in (("same", SENT[:10]), ("other", [*SENT[:9], Sent(queue=1, offset=4, body=b"z" * 100)])):
        write_member(tmp_path / name, messages, member="n1")
    copied(tmp_path / "n0", tmp_path / "claim", (survey(Place(tmp_path / "same")),))
    with pytest.raises(StoreError, match=r"entries 8\.\.9 differ"):
        copied(tmp_path / "n0", tmp_path / "claim-2", (survey(Place(tmp_path / "other")),))


def test_a_member_of_another_group_with_the_same_terms(tmp_path: Path) -> None:
    """Its log ends in another file than that of the chosen one."""
    write_member(tmp_path / "n0", [replace(one, body=b"y" * 300) for one in SENT])
    write_member(tmp_path / "other", SENT[:10], member="n1")
    with pytest.raises(StoreError, match=r"entries .* differ"):
        copied(tmp_path / "n0", tmp_path / "claim", (survey(Place(tmp_path / "other")),))


def test_a_broker_on_another_host_writes_to_the_store_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock shows it. The store's report is the same: the entry came behind the place where the copy was."""
    store = tmp_path / "store"
    end = write_member(store, SENT)
    (store / "abort").write_text("")
    whole = LogWriter.end

    def end_then_write(self: LogWriter) -> None:
        whole(self)
        change(store, end, entry(Sent(offset=10), 20, end))

    monkeypatch.setattr(LogWriter, "end", end_then_write)
    with pytest.raises(StoreError, match="changed while they were copied"):
        copied(store, tmp_path / "claim")


@pytest.mark.parametrize("kind", ["killed", "the disk is full"])
def test_whatever_the_step_at_which_a_copy_ends_the_next_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """At each sync, and between the manifest and the end of the attempt: no backup, or this one, and done again it is whole."""
    store, syncs = tmp_path / "store", 0
    write_member(store, SENT)
    write_queues(store)
    expected = content_of(copied(store, tmp_path / "expected"))
    expected.pop(MANIFEST)
    last = count = 0
    real = os.fsync

    def ends_at(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == last:
            raise (KeyboardInterrupt if kind == "killed" else OSError(28, "No space left on device"))
        real(descriptor)

    while True:
        last, count = last + 1, 0
        monkeypatch.setattr(os, "fsync", ends_at)
        try:
            copied(store, tmp_path / str(last))
        except (KeyboardInterrupt, OSError):
            syncs += 1
        else:
            break
        finally:
            monkeypatch.setattr(os, "fsync", real)
        assert missing_bytes(survey(Place(store)), target_in(tmp_path / str(last))) == 0
        folder = copied(store, tmp_path / str(last))
        found = content_of(folder)
        assert read_manifest(folder).backup.offset == log_end(folder / "commitlog")
        found.pop(MANIFEST)
        assert found == expected
    assert syncs > 10


def test_a_link_in_the_place_of_the_copy(tmp_path: Path) -> None:
    write_member(tmp_path / "store", SENT)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "claim" / "orders").mkdir(parents=True)
    target_in(tmp_path / "claim").folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a symbolic link in the claim"):
        copied(tmp_path / "store", tmp_path / "claim")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_deleted_topic_does_not_keep_a_store_from_being_copied(tmp_path: Path) -> None:
    """Java deletes the queues of such a topic, and its messages stay in the log."""
    gone = [Sent(topic="gone", offset=number) for number in range(5)]
    write_member(tmp_path / "store", [*gone, *SENT])
    write_queues(tmp_path / "store")
    found = survey(Place(tmp_path / "store"))
    assert (found.deleted, found.undispatched_files) == (5, 0)
    assert len(messages_in(copied(tmp_path / "store", tmp_path / "claim") / "commitlog")) == 25
    # A topic of the settings has lost its queue.
    topics = tmp_path / "store" / "config" / "topics.json"
    topics.write_text('{"topicConfigTable":{"orders":{"topicName":"orders"},"gone":{}}}')
    for _ in range(2):
        with pytest.raises(StoreError, match="no queue has that at"):
            survey(Place(tmp_path / "store"))
        topics.unlink(missing_ok=True)


def test_the_last_messages_of_an_unknown_topic_are_not_dispatched_yet(tmp_path: Path) -> None:
    """A follower has topics late: without a later message in a queue nothing shows that the topic was deleted."""
    new = [Sent(topic="new", offset=number) for number in range(5)]
    end = write_member(tmp_path, [*SENT, *new])
    write_queues(tmp_path)
    found = survey(Place(tmp_path))
    first = next(one for one in messages_of_ledger(tmp_path, "n0") if one.topic == "new").physical_offset
    assert (found.deleted, found.undispatched_files) == (0, end // FILE_BYTES - first // FILE_BYTES + 1)


def test_a_topic_that_was_deleted_and_created_again(tmp_path: Path) -> None:
    """Brokers that copy the log would give its new messages the numbers of the old ones."""
    write_member(tmp_path, [*SENT, *SENT])
    for queue in range(2):
        write_queue(tmp_path, "orders", queue, places_of(tmp_path, queue)[10:], size=len(SENT[0].record(0)))
    with pytest.raises(StoreError, match="was the topic deleted and created again"):
        survey(Place(tmp_path))


def test_many_queues_cost_no_more_than_one_sync_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More queues than files that may be open: with a sync for each change of file, a log of 100 GB took days."""
    sent = [Sent(queue=number % 50, offset=number // 50) for number in range(300)]
    write_member(tmp_path / "store", sent)
    write_queues(tmp_path / "store", 50)
    synced: Counter[str] = Counter()
    real = os.fsync

    def counted(descriptor: int) -> None:
        synced[str(Path(f"/proc/self/fd/{descriptor}").readlink())] += 1
        real(descriptor)

    class CountedMap(mmap.mmap):
        def flush(self, *arguments: int) -> None:
            synced["a map"] += 1
            super().flush(*arguments)

    monkeypatch.setattr(os, "fsync", counted)
    monkeypatch.setattr(mmap, "mmap", CountedMap)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    folder = copied(tmp_path / "store", tmp_path / "claim")
    for queue in range(50):
        expected = [one.physical_offset for one in messages_in(folder / "commitlog") if one.queue_id == queue]
        assert [one[0] for one in entries_in(folder, "orders", queue)] == expected
        # Once as it is copied, once with its new places.
        assert synced[str(folder / "store" / "consumequeue" / "orders" / str(queue) / f"{0:020d}")] == 2
    assert synced["a map"] == 0


def test_a_store_without_a_dledger_log(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected one folder dledger-<dLegerSelfId> in the store, found none"):
        survey(Place(tmp_path))
    with pytest.raises(StoreError, match="expected the folder of a broker's store"):
        survey(Place(tmp_path / "none"))
