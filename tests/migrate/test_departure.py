"""A stopped group's way to a Java controller or to static roles: what is refused, what is written, and when the record goes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.migrate.adopt import NamedStore, judge
from brokergroup_operator.migrate.departure import Departure, Target, judge_departure
from brokergroup_operator.migrate.stores import Place, StoreError, StoreReport, inspect, prepare, release
from controller_core.model import BrokerGroupRecord, Change, ChangeKind, Phase, Replica
from rocketmq_replica.log.epochs import EpochCache, EpochEntry
from rocketmq_replica.log.side_files import encode_epochs
from tests.migrate.test_adopt import CLUSTER, NAME, adopt, identity
from tests.migrate.test_stores import HOLDER, content_of, write_store

if TYPE_CHECKING:
    from pathlib import Path

REPORT = StoreReport(begin=0, end=1000, file_bytes=4096, tails=("a", "b"), epochs=((2, 0), (7, 400)))


def member(broker_id: int, **changed: Any) -> StoreReport:
    return replace(REPORT, **({"identity": identity(broker_id)} | changed))


def seat(broker_id: int, offset: int = 900) -> Replica:
    return Replica(broker_id, register_check_code="c", registered=True, held_epoch=7, held_offset=offset)


RECORD = BrokerGroupRecord(
    cluster_name=CLUSTER, broker_name=NAME, next_broker_id=3, replicas={1: seat(1), 2: seat(2)},
    master_broker_id=2, master_epoch=7, sync_state_set=frozenset({1, 2}), sync_state_set_epoch=9,
)  # fmt: skip


def leaving(
    *said: StoreReport | str, record: BrokerGroupRecord = RECORD, target: Target = Target.JAVA_CONTROLLER
) -> Departure:
    stores = [NamedStore(name=f"s{number}", said=one) for number, one in enumerate(said, start=1)]
    return judge_departure(record, stores, target, controllers="c:9878")


def found(departure: Departure) -> list[str]:
    return [doubt.obstacle.value for doubt in departure.doubts]


def test_members_with_one_log_may_leave_in_any_order() -> None:
    departure = leaving(member(2), member(1))
    assert (found(departure), departure.blocked, departure.is_released) == ([], False, False)
    released = replace(REPORT, epochs=((0, 0),), released=identity(1))
    departure = leaving(released, replace(released, released=identity(2)))
    assert (found(departure), departure.is_released) == ([], True)
    assert [one.broker_id for one in departure.members] == [1, 2]


@pytest.mark.parametrize(
    ("target", "epochs", "is_released"),
    [
        (Target.JAVA_CONTROLLER, ((0, 0),), True),
        (Target.JAVA_CONTROLLER, ((2, 0), (7, 400)), False),
        (Target.JAVA_CONTROLLER, (), False),
        (Target.STATIC_ROLES, (), True),
        (Target.STATIC_ROLES, ((0, 0),), False),
    ],
)
def test_a_store_that_was_released_in_part_or_to_the_other_one_is_not_released(
    target: Target, epochs: tuple[tuple[int, int], ...], is_released: bool
) -> None:
    """A full disk ends `release` after the identity, and a broker with a higher epoch takes no role under epoch 1."""
    half = replace(REPORT, epochs=epochs, released=identity(1))
    departure = leaving(half, replace(half, released=identity(2)), target=target)
    assert (departure.blocked, departure.is_released) == (False, is_released)
    assert ("slave, member" in "\n".join(departure.lines())) is not is_released


@pytest.mark.parametrize(
    ("said", "obstacle"),
    [
        ((member(1), "a broker runs on this store"), "Unreadable"),
        ((member(1),), "MemberMissing"),
        ((member(1), member(2), member(3)), "NoMember"),
        ((member(1), member(2), REPORT), "NoMember"),
        ((member(1), member(1), member(2)), "NamedTwice"),
        ((member(1), member(2, identity=identity(2, "other"))), "OtherGroup"),
        ((member(1, end=999), member(2)), "LogsDiffer"),
        ((member(1, end=1001), member(2)), "LogsDiffer"),
        ((member(1, tails=("c", "b")), member(2)), "LogsDiffer"),
        ((member(1, end=899), member(2, end=899)), "BelowItsMark"),
        ((member(1, names="of a slave that has not copied yet"), member(2, names="of its master")), "TopicsDiffer"),
    ],
)
def test_what_is_refused(said: tuple[StoreReport | str, ...], obstacle: str) -> None:
    departure = leaving(*said)
    assert departure.blocked
    assert obstacle in found(departure)
    assert f"BLOCKS {obstacle}" in "\n".join(departure.lines())


CHANGE = Change(id=1, kind=ChangeKind.FAILOVER, phase=Phase.TELLING, carried_out_by="plane")


@pytest.mark.parametrize(
    ("record", "obstacle"),
    [
        (replace(RECORD, master_broker_id=None, sync_state_set=frozenset()), "NoSeat"),
        (replace(RECORD, change=CHANGE), "ChangeUnderWay"),
        (replace(RECORD, unfenced=frozenset({1})), "ChangeUnderWay"),
        (replace(RECORD, lost_seats=frozenset({1})), "SeatLost"),
    ],
)
def test_a_group_that_is_not_at_rest_is_refused(record: BrokerGroupRecord, obstacle: str) -> None:
    departure = leaving(member(1), member(2), record=record)
    assert departure.blocked
    assert obstacle in found(departure)


def test_what_is_only_told() -> None:
    departure = leaving(member(1, begin=512, stopped_cleanly=False), member(2))
    assert (sorted(found(departure)), departure.blocked) == (["BeginsLater", "KilledNotStopped"], False)


def test_the_properties_of_each_broker_there() -> None:
    java = leaving(member(1), member(2)).properties(1, store="/data/store", further={"flushDiskType": "SYNC_FLUSH"})
    assert (java["brokerId"], java["controllerAddr"], java["enableControllerMode"]) == ("-1", "c:9878", "true")
    assert (java["allAckInSyncStateSet"], java["minInSyncReplicas"]) == ("true", "2")
    assert (java["storePathCommitLog"], java["flushDiskType"]) == ("/data/store/commitlog", "SYNC_FLUSH")
    static = leaving(member(1), member(2), target=Target.STATIC_ROLES)
    master, slave = (static.properties(one, store="/data/store", further={}) for one in (2, 1))
    assert (master["brokerId"], master["brokerRole"], master["inSyncReplicas"]) == ("0", "SYNC_MASTER", "2")
    assert (slave["brokerId"], slave["brokerRole"], slave["enableControllerMode"]) == ("1", "SLAVE", "false")
    assert master["mappedFileSizeCommitLog"] == "4096"


def a_member(root: Path, broker_id: int) -> None:
    write_store(root)
    (root / "epochFileCheckpoint").write_bytes(encode_epochs(EpochCache([EpochEntry(2, 0), EpochEntry(7, 400)])))
    (root / "brokerIdentity").write_text(str(identity(broker_id)))


@pytest.mark.parametrize("to_controller", [True, False])
def test_release_changes_two_files_and_keeps_what_they_were(tmp_path: Path, to_controller: bool) -> None:
    a_member(tmp_path, 2)
    before, data = inspect(Place(tmp_path)), content_of(tmp_path)
    after = release(Place(tmp_path), to_controller=to_controller)
    epochs = ((0, 0),) if to_controller else ()
    assert after == replace(before, identity=None, epochs=epochs, released=identity(2))
    now = content_of(tmp_path)
    assert now["brokerIdentity.released"] == data["brokerIdentity"]
    assert now["epochFileCheckpoint.released"] == data["epochFileCheckpoint"]
    changed = {"brokerIdentity", "epochFileCheckpoint", "brokerIdentity.released", "epochFileCheckpoint.released"}
    assert {name: text for name, text in now.items() if name not in changed} == {
        name: text for name, text in data.items() if name not in changed
    }
    assert release(Place(tmp_path), to_controller=to_controller) == after
    assert content_of(tmp_path) == now
    # For the other deployment after all.
    assert release(Place(tmp_path), to_controller=not to_controller).epochs == (() if to_controller else ((0, 0),))


@pytest.mark.parametrize("to_controller", [True, False])
def test_a_release_that_was_cut_off_after_the_identity_is_done_again(tmp_path: Path, to_controller: bool) -> None:
    a_member(tmp_path, 2)
    (tmp_path / "brokerIdentity").rename(tmp_path / "brokerIdentity.released")
    after = release(Place(tmp_path), to_controller=to_controller)
    assert (after.epochs, after.released) == (((0, 0),) if to_controller else (), identity(2))


def test_a_store_that_is_no_members_is_not_released(tmp_path: Path) -> None:
    write_store(tmp_path)
    before = content_of(tmp_path)
    with pytest.raises(StoreError, match="there is no brokerIdentity: the store is no member's of a group"):
        release(Place(tmp_path), to_controller=True)
    assert content_of(tmp_path) == before


@pytest.mark.parametrize("to_controller", [True, False])
def test_a_store_that_was_released_can_be_taken_over_again(tmp_path: Path, to_controller: bool) -> None:
    a_member(tmp_path, 2)
    report = release(Place(tmp_path), to_controller=to_controller)
    adoption = judge([NamedStore(name="s", said=report)], cluster_name=CLUSTER, broker_name=NAME)
    assert not adoption.blocked
    after = prepare(Place(tmp_path), HOLDER, renewed_epoch=adoption.renewed_epoch)
    assert (after.epochs, after.identity, after.released) == (((1, 0),), HOLDER, None)
    assert not (tmp_path / "brokerIdentity.released").exists()


def begun(tmp_path: Path, *names: str) -> tuple[str, ...]:
    """Write members' stores and their record; return the options that name it."""
    records = ("--store", f"file:{tmp_path / 'records'}")
    for name in names:
        write_store(tmp_path / name)
        (tmp_path / f"{name}.json").write_text(adopt("check", tmp_path / name).stdout)
    reports = [tmp_path / f"{name}.json" for name in names]
    done = adopt("begin", *reports, "--cluster", CLUSTER, "--broker-name", NAME, *records, "--yes")
    assert done.exit_code == 0, done.output
    for number, name in enumerate(names, start=1):
        whose = ("--cluster", CLUSTER, "--broker-name", NAME, "--broker-id", number)
        assert adopt("prepare", tmp_path / name, *whose, "--yes").exit_code == 0
    return records


def test_a_master_that_was_stopped_last_leaves_a_seat() -> None:
    """The record of a stopped group has no master then."""
    departure = leaving(
        member(1), member(2), record=replace(RECORD, master_broker_id=None, sync_state_set=frozenset({2}))
    )
    assert not departure.blocked
    assert "broker 2  s2  log 0..1000: the last master" in "\n".join(departure.lines())


def test_the_record_goes_only_when_every_store_is_released(tmp_path: Path) -> None:
    names = ("one", "two")
    records = begun(tmp_path, *names)
    reports = [tmp_path / f"{name}.json" for name in names]
    words = ("--broker-name", NAME, "--to", "static-roles", *records, "--output", tmp_path / "conf", "--yes")

    def check() -> None:
        for name in names:
            (tmp_path / f"{name}.json").write_text(adopt("check", tmp_path / name).stdout)

    for name in names:
        check()
        early = adopt("back", *reports, *words)
        assert (early.exit_code, "a store is not released" in early.output) == (2, True), early.output
        assert adopt("release", tmp_path / name, "--to", "static-roles", "--yes").exit_code == 0
    alone = adopt("back", reports[0], *words)
    assert (alone.exit_code, "BLOCKS MemberMissing" in alone.output) == (2, True)
    check()
    # The plan, and what the brokers start with, come before the end of the record: a full disk leaves that as it is.
    (tmp_path / "full").write_text("")
    unwritten = adopt("back", *reports, *words, "--output", tmp_path / "full")
    assert (unwritten.exit_code, "full" in unwritten.output) == (2, True), unwritten.output
    done = adopt("back", *reports, *words)
    assert (done.exit_code, '"step": "removed"' in done.output) == (0, True), done.output
    assert sorted(path.name for path in (tmp_path / "conf").iterdir()) == ["broker-1.conf", "broker-2.conf"]
    gone = adopt("back", *reports, *words)
    assert (gone.exit_code, f"has no record of {NAME}" in gone.output) == (2, True), gone.output


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--to", "dledger"), "expected static-roles or java-controller"),
        (("--to", "java-controller"), "expected host:port of the Java controllers"),
        (("--to", "static-roles", "--controller-addr", "c:9878"), "expected none, for static roles"),
    ],
)
def test_options_that_contradict_are_named(tmp_path: Path, words: tuple[str, ...], fault: str) -> None:
    (tmp_path / "one.json").write_text("{}")
    done = adopt("back", tmp_path / "one.json", "--broker-name", NAME, "--store", "memory", *words)
    assert done.exit_code == 2
    assert fault in " ".join(done.output.replace("│", " ").split())
