"""Stores of RocketMQ 5.0.0 to 5.1.0, whose controller gave no persistent ids: what is taken, refused, and written into them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.migrate.adopt import record_of
from brokergroup_operator.migrate.stores import Place, StoreError, StoreReport, inspect, prepare
from controller_core.model import MAX_EPOCH, LiveReplica
from controller_core.requests import ElectMaster, RegisterBroker
from rocketmq_replica.log.epochs import DivergedLogError, EpochCache, EpochEntry, consistent_point
from rocketmq_replica.log.side_files import encode_epochs
from tests.migrate.fake_node import is_killed, kills_of
from tests.migrate.test_adopt import CLUSTER, NAME, adopt, decided, found, identity, judged_as_they_are
from tests.migrate.test_claims import a_cluster, state_of, take
from tests.migrate.test_quiet import MASTER, SLAVE, a_group, having
from tests.migrate.test_stores import HOLDER, content_of, write_store
from tests.support.memory_api import MemoryApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.migrate.quiet import StaticBroker
    from tests.migrate.fake_node import FakeNode

EPOCHS = ((1, 0), (4, 400))
REPORT = StoreReport(begin=0, end=1000, file_bytes=4096, tails=("a", "b"), epochs=EPOCHS)
RENEWED = replace(REPORT, epochs=((5, 0),), replaced=EPOCHS)


@pytest.mark.parametrize(
    "slave",
    [
        REPORT,
        # It heard of no message of the last epoch, and has the same log.
        replace(REPORT, epochs=((1, 0),)),
        # As a run that was cut off leaves them: before the identity was written, and after.
        RENEWED,
        replace(RENEWED, identity=identity(2)),
    ],
)
@pytest.mark.parametrize("master", [REPORT, RENEWED, replace(RENEWED, identity=identity(1))])
def test_what_is_taken_gets_one_new_epoch_and_new_ids(master: StoreReport, slave: StoreReport) -> None:
    adoption = judged_as_they_are(master, slave)
    assert (found(adoption), adoption.blocked) == ([], False)
    assert adoption.renewed_epoch == 5
    record = record_of(adoption)
    assert (record.master_epoch, record.next_broker_id, record.sync_state_set) == (5, 3, frozenset({1}))
    assert (record.replicas[1].held_epoch, record.replicas[1].held_offset) == (5, 1000)


@pytest.mark.parametrize(
    ("slave", "finding"),
    [
        (replace(REPORT, epochs=((1, 0), (4, 300))), "MastersDisagree"),
        (replace(REPORT, epochs=((1, 0), (4, 400), (5, 900))), "AheadOfMaster"),
        (replace(REPORT, end=1001), "AheadOfMaster"),
        (replace(REPORT, epochs=((1, 0),), end=1200), "Diverged"),
        (replace(REPORT, tails=("a", "c")), "Diverged"),
        (replace(REPORT, end=999), "NotCaughtUp"),
        (replace(REPORT, epochs=((1, 0),), end=400), "NotCaughtUp"),
        (replace(REPORT, end=399), "CutShort"),
        (replace(REPORT, identity=identity(2)), "TwoKinds"),
        (replace(REPORT, epochs=()), "TwoKinds"),
        (replace(REPORT, file_bytes=8192), "OtherFileSize"),
        (replace(REPORT, epochs=((MAX_EPOCH - 2, 0),)), "NoEpochLeft"),
    ],
)
def test_what_is_refused(slave: StoreReport, finding: str) -> None:
    for master, renewed in ((REPORT, slave), (replace(RENEWED, identity=identity(1)), slave)):
        adoption = judged_as_they_are(master, renewed)
        assert adoption.blocked
        assert finding in found(adoption)


def test_a_master_that_lost_the_end_of_its_log_is_refused_alone_too() -> None:
    adoption = judged_as_they_are(replace(REPORT, end=399))
    assert (found(adoption), adoption.blocked) == (["CutShort"], True)


def test_the_plan_shows_the_steps_and_what_is_lost() -> None:
    shown = "\n".join(judged_as_they_are(REPORT, REPORT).lines())
    assert "the first election is above epoch 5" in shown
    assert "stopped, and not to be started again: every controller of theirs, then the slaves, then the master" in shown
    assert "epochFileCheckpoint becomes epoch 5 from offset 0" in shown
    assert "kept: all that broker 1 has, to offset 1000" in shown
    assert "lost: what no store named here has" in shown
    assert "broker 1  s1  log 0..1000, epoch 4: begins as master" in shown


def test_only_the_former_masters_disk_is_elected_and_above_every_epoch() -> None:
    record = record_of(judged_as_they_are(REPORT, REPORT))
    live: dict[int, LiveReplica] = {}
    for broker_id in (2, 1):
        address = f"10.0.0.{broker_id}:10911"
        request = RegisterBroker(cluster_name=CLUSTER, broker_name=NAME, broker_id=broker_id, broker_address=address)
        record = decided(record, request, live)
        live[broker_id] = LiveReplica(broker_id, address=address, epoch=5, max_offset=REPORT.end)
        record = decided(record, ElectMaster(broker_id=broker_id), live)
        assert record.master_broker_id == (1 if broker_id == 1 else None)
    assert record.master_epoch == 6


def write_old_store(root: Path, *entries: EpochEntry) -> bytes:
    write_store(root)
    epochs = encode_epochs(EpochCache(list(entries)))
    (root / "epochFileCheckpoint").write_bytes(epochs)
    (root / "epochFileCheckpoint.bak").write_bytes(epochs)
    return epochs


def test_prepare_renews_the_epochs_and_keeps_the_old_ones_beside_them(tmp_path: Path) -> None:
    old = write_old_store(tmp_path, EpochEntry(1, 0), EpochEntry(4, 400))
    before, data = inspect(Place(tmp_path)), content_of(tmp_path)
    after = prepare(Place(tmp_path), HOLDER, renewed_epoch=5)
    assert after == replace(before, epochs=((5, 0),), identity=HOLDER, replaced=EPOCHS)
    now = content_of(tmp_path)
    assert now["epochFileCheckpoint.before-ids"] == old
    assert "epochFileCheckpoint.bak" not in now
    assert {name for name in now if now[name] != data.get(name)} == {
        "epochFileCheckpoint", "epochFileCheckpoint.before-ids", "brokerIdentity",
    }  # fmt: skip
    assert prepare(Place(tmp_path), HOLDER, renewed_epoch=5) == after
    assert content_of(tmp_path) == now
    # Another store was named, with a later epoch: all get one that none has.
    assert prepare(Place(tmp_path), HOLDER, renewed_epoch=9) == replace(after, epochs=((9, 0),))
    assert content_of(tmp_path)["epochFileCheckpoint.before-ids"] == old


@pytest.mark.parametrize("cut_off_after", ["the copy", "the epoch"])
def test_a_renewal_that_was_cut_off_is_done_again(tmp_path: Path, cut_off_after: str) -> None:
    old = write_old_store(tmp_path, EpochEntry(1, 0), EpochEntry(4, 400))
    (tmp_path / "epochFileCheckpoint.before-ids").write_bytes(old)
    if cut_off_after == "the epoch":
        (tmp_path / "epochFileCheckpoint").write_bytes(encode_epochs(EpochCache([EpochEntry(5, 0)])))
    assert inspect(Place(tmp_path)).epochs_without_ids == EPOCHS
    after = prepare(Place(tmp_path), HOLDER, renewed_epoch=5)
    assert (after.epochs, after.epochs_without_ids, after.identity) == (((5, 0),), EPOCHS, HOLDER)
    assert not (tmp_path / "epochFileCheckpoint.bak").exists()


def test_a_store_that_went_on_here_is_a_controllers_as_any_other(tmp_path: Path) -> None:
    write_old_store(tmp_path, EpochEntry(1, 0), EpochEntry(4, 400))
    prepare(Place(tmp_path), HOLDER, renewed_epoch=5)
    later = encode_epochs(EpochCache([EpochEntry(5, 0), EpochEntry(6, 1000)]))
    (tmp_path / "epochFileCheckpoint").write_bytes(later)
    assert inspect(Place(tmp_path)).epochs_without_ids == ()
    prepare(Place(tmp_path), HOLDER)
    assert (tmp_path / "epochFileCheckpoint").read_bytes() == later


def test_a_store_that_was_left_out_has_no_epoch_in_common_with_the_renewed_ones() -> None:
    """Its end is unknown: it must not join with it."""
    left_out = [EpochEntry(1, 0), EpochEntry(4, 400)]
    with pytest.raises(DivergedLogError):
        consistent_point(
            local=left_out,
            master=[EpochEntry(5, 0)],
            local_max_offset=1100,
            master_max_offset=1000,
            never_confirmed=False,
        )


@pytest.mark.parametrize(
    ("entries", "renewed", "fault"),
    [
        ((EpochEntry(1, 0), EpochEntry(4, 400)), 0, "of a broker before 5.1.1. Expected --renew-epoch"),
        ((EpochEntry(1, 0), EpochEntry(4, 400)), 4, "--renew-epoch is 4, expected one above 4"),
        ((), 5, "--renew-epoch is 5, expected none"),
    ],
)
def test_epochs_are_renewed_exactly_where_no_ids_are(
    tmp_path: Path, entries: tuple[EpochEntry, ...], renewed: int, fault: str
) -> None:
    write_store(tmp_path)
    if entries:
        (tmp_path / "epochFileCheckpoint").write_bytes(encode_epochs(EpochCache(list(entries))))
    before = content_of(tmp_path)
    with pytest.raises(StoreError, match=fault):
        prepare(Place(tmp_path), HOLDER, renewed_epoch=renewed)
    assert content_of(tmp_path) == before


def test_a_log_of_one_epoch_from_its_begin_needs_no_other(tmp_path: Path) -> None:
    """A group that never failed over: it is as if static roles had written it."""
    write_old_store(tmp_path, EpochEntry(1, 0))
    assert judged_as_they_are(inspect(Place(tmp_path))).renewed_epoch == 0
    assert prepare(Place(tmp_path), HOLDER).epochs == ((1, 0),)


def test_the_commands_renew_what_the_plan_says(tmp_path: Path) -> None:
    whose = ("--cluster", CLUSTER, "--broker-name", NAME)
    reports = []
    for name in ("one", "two"):
        write_old_store(tmp_path / name, EpochEntry(1, 0), EpochEntry(4, 400))
        reports.append(tmp_path / f"{name}.json")
        reports[-1].write_text(adopt("check", tmp_path / name).stdout)
    begin = ("begin", *reports, *whose, "--store", f"file:{tmp_path / 'records'}")
    assert "prepare STORE" in (shown := adopt(*begin).output)
    assert "--renew-epoch 5" in shown
    assert adopt(*begin, "--yes").exit_code == 0
    prepared = ("prepare", tmp_path / "one", *whose, "--broker-id", 1)
    refused = adopt(*prepared)
    assert (refused.exit_code, "Expected --renew-epoch" in refused.stderr) == (2, True)
    shown = adopt(*prepared, "--renew-epoch", 5)
    told = "epochFileCheckpoint: epoch 5 from offset 0; the old one stays as epochFileCheckpoint.before-ids"
    assert (shown.exit_code, told in shown.output) == (0, True), shown.output
    assert inspect(Place(tmp_path / "one")).epochs == ((1, 0), (4, 400))
    assert adopt(*prepared, "--renew-epoch", 5, "--yes").exit_code == 0
    assert inspect(Place(tmp_path / "one")).epochs == ((5, 0),)


@asynccontextmanager
async def a_cluster_of_epoch_files(folder: Path) -> AsyncIterator[FakeNode]:
    async with a_cluster(folder) as node:
        for number in range(2):
            root = folder / f"pv-{number}" / "store"
            for entry in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
                (root / entry).write_bytes(encode_epochs(EpochCache([EpochEntry(1, 0), EpochEntry(4, 400)])))
        yield node


async def check_taken(node: FakeNode, folder: Path, why: str) -> None:
    state = await state_of(node.api, folder)
    assert state["seats"] == (5, [1], 3, None), why
    for number, store in enumerate(state["stores"], start=1):
        assert (store.epochs, store.replaced, store.identity) == (((5, 0),), EPOCHS, identity(number))


@pytest.mark.sampled
async def test_wherever_it_is_killed_the_next_run_comes_to_the_same_end(tmp_path: Path) -> None:
    async with a_cluster_of_epoch_files(tmp_path / "whole") as node:
        kills = await kills_of(take, node.api.server, at_least=20)
        await check_taken(node, tmp_path / "whole", "not killed")
    for writes in kills:
        folder = tmp_path / str(writes)
        async with a_cluster_of_epoch_files(folder) as node:
            killed = await is_killed(take, node.api.server, writes=writes)
            assert killed == (writes < kills[-1])
            if killed:
                await take(MemoryApi(node.api.server))
            await check_taken(node, folder, f"killed before write {writes + 1}")


OLD_MASTER = replace(having(MASTER, enableControllerMode="true"), version="V5_0_0")
OLD_SLAVE = replace(having(SLAVE, enableControllerMode="true"), version="V5_1_0")


@pytest.mark.parametrize(
    ("brokers", "findings"),
    [
        ((OLD_MASTER, OLD_SLAVE), ["NoPersistentIds", "NoPersistentIds"]),
        ((OLD_MASTER, replace(OLD_SLAVE, end=1)), ["NoPersistentIds", "NoPersistentIds", "Behind"]),
        (
            (having(OLD_MASTER, storePathEpochFile="/root/store/epochFileCheckpoint"),),
            ["NoPersistentIds", "EpochsElsewhere"],
        ),
        ((having(OLD_MASTER, storePathEpochFile="/store/epochFileCheckpoint"),), ["NoPersistentIds"]),
    ],
)
def test_running_brokers_of_such_a_controller_can_be_made_quiet(
    brokers: tuple[StaticBroker, ...], findings: list[str]
) -> None:
    group = a_group(*brokers)
    assert ([doubt.finding.value for doubt in group.doubts], group.blocked) == (findings, False)
    assert group.next_step.startswith(
        "stop them now: every controller of theirs first, then the slaves, then the master"
    )


def test_brokers_of_a_later_controller_are_refused_as_before() -> None:
    group = a_group(replace(OLD_MASTER, version="V5_1_1"), OLD_SLAVE)
    assert group.blocked
