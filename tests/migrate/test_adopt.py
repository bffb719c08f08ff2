"""Which stores are taken over, which are refused and why, and the record that begins with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from brokergroup_operator.migrate.adopt import Adoption, NamedStore, judge, record_of
from brokergroup_operator.migrate.stores import Identity, Place, StoreReport, inspect, prepare
from controller_core.model import MAX_EPOCH, LiveReplica
from controller_core.requests import ElectMaster, RegisterBroker
from controller_core.settings import ControllerSettings
from controller_core.step import step
from tests.migrate.test_stores import FILE_BYTES, write_store

if TYPE_CHECKING:
    from pathlib import Path

    from controller_core.model import BrokerGroupRecord
    from controller_core.requests import Request

CLUSTER, NAME = "DefaultCluster", "broker-a"
STATIC = StoreReport(begin=0, end=1000, file_bytes=4096, tails=("a", "b"))
EPOCHS = ((2, 0), (5, 400))
CONTROLLED = replace(STATIC, epochs=EPOCHS)


def identity(broker_id: int, name: str = NAME) -> Identity:
    return Identity(cluster_name=CLUSTER, broker_name=name, broker_id=broker_id)


def judged(*said: StoreReport | str) -> Adoption:
    """Judge them; a store with epochs has an identity, as a controller from 5.1.1 on gives one."""
    return judged_as_they_are(
        *(
            replace(one, identity=identity(number))
            if isinstance(one, StoreReport) and one.epochs and one.identity is None
            else one
            for number, one in enumerate(said, start=1)
        )
    )


def judged_as_they_are(*said: StoreReport | str) -> Adoption:
    stores = [NamedStore(name=f"s{number}", said=one) for number, one in enumerate(said, start=1)]
    return judge(stores, cluster_name=CLUSTER, broker_name=NAME)


def found(adoption: Adoption) -> list[str]:
    return [doubt.finding.value for doubt in adoption.doubts]


@pytest.mark.parametrize(
    ("said", "findings"),
    [
        ((STATIC,), []),
        ((STATIC, STATIC), []),
        ((replace(STATIC, begin=512), replace(STATIC, tails=("a",))), []),
        # As an attempt leaves them that was cut off between two stores.
        ((replace(STATIC, epochs=((1, 0),), identity=identity(1)), STATIC), []),
        ((CONTROLLED, CONTROLLED), []),
        ((CONTROLLED, replace(CONTROLLED, end=900, tails=("c",))), []),
        ((CONTROLLED, replace(CONTROLLED, end=2000, epochs=((2, 0),))), []),
    ],
)
def test_what_is_taken(said: tuple[StoreReport, ...], findings: list[str]) -> None:
    adoption = judged(*said)
    assert (found(adoption), adoption.blocked) == (findings, False)
    assert [one.broker_id for one in adoption.members] == [*range(1, len(said) + 1)]


@pytest.mark.parametrize(
    ("said", "finding"),
    [
        ((), "Unreadable"),
        (("there is no commit log in store",), "Unreadable"),
        (("there is no commit log in store", STATIC), "Unreadable"),
        ((STATIC, "dledger-n0 is a DLedger commit log"), "Unreadable"),
        ((STATIC, replace(STATIC, end=1001)), "AheadOfMaster"),
        ((STATIC, replace(STATIC, end=999)), "NotCaughtUp"),
        ((STATIC, replace(STATIC, tails=("a", "c"))), "Diverged"),
        ((STATIC, replace(STATIC, file_bytes=8192)), "OtherFileSize"),
        # Java's new static slaves begin with the master's last file: as a master it would lack what lies before.
        ((STATIC, replace(STATIC, begin=1)), "BeginsLater"),
        ((STATIC, CONTROLLED), "TwoKinds"),
        ((CONTROLLED, STATIC), "TwoKinds"),
        ((CONTROLLED, replace(CONTROLLED, epochs=((2, 0), (6, 300)), end=500)), "AheadOfMaster"),
        ((CONTROLLED, replace(CONTROLLED, end=1001)), "AheadOfMaster"),
        ((CONTROLLED, replace(CONTROLLED, epochs=((1, 0), (4, 300)))), "OtherHistory"),
        # Also two of static roles that an earlier run has given their first epoch.
        ((CONTROLLED, replace(CONTROLLED, tails=("a", "c"))), "Diverged"),
        ((replace(CONTROLLED, identity=identity(1, "other")),), "OtherGroup"),
        ((replace(STATIC, epochs=((MAX_EPOCH, 0),)),), "NoEpochLeft"),
    ],
)
def test_what_is_refused(said: tuple[Any, ...], finding: str) -> None:
    adoption = judged(*said)
    assert adoption.blocked
    assert finding in found(adoption)


def test_a_store_that_is_named_twice_is_refused() -> None:
    twice = [NamedStore(name="same", said=STATIC)] * 2
    assert found(judge(twice, cluster_name=CLUSTER, broker_name=NAME)) == ["NamedTwice"]


def test_what_is_only_told() -> None:
    odd = replace(CONTROLLED, identity=identity(7), stopped_cleanly=False, has_topics=False)
    adoption = judged(odd)
    assert (found(adoption), adoption.blocked) == (["NewBrokerId", "NoTopics", "KilledNotStopped"], False)
    assert adoption.identity_of(adoption.members[0]) == identity(1)
    shown = "\n".join(adoption.lines())
    assert "broker 1  s1  log 0..1000, epoch 5: begins as master" in shown
    assert "note   NewBrokerId: s1 was broker 7 and becomes broker 1" in shown


def test_a_controllers_store_that_begins_later_is_told() -> None:
    """The old controller could elect it, too: it is no worse than before."""
    adoption = judged(CONTROLLED, replace(CONTROLLED, begin=100))
    assert (found(adoption), adoption.blocked) == (["BeginsLater"], False)


def decided(record: BrokerGroupRecord, request: Request, live: dict[int, LiveReplica]) -> BrokerGroupRecord:
    after = step(record, request, live, ControllerSettings(unclean_election_allowed=False)).record
    assert after is not None
    return after


@pytest.mark.parametrize(("said", "epoch"), [(STATIC, 1), (CONTROLLED, 5)])
def test_only_the_masters_disk_is_elected_first_and_above_every_epoch(said: StoreReport, epoch: int) -> None:
    record = record_of(judged(said, said, said))
    assert (record.master_broker_id, record.master_epoch, record.next_broker_id) == (None, epoch, 4)
    live: dict[int, LiveReplica] = {}
    for broker_id in (3, 2, 1):
        address = f"10.0.0.{broker_id}:10911"
        request = RegisterBroker(cluster_name=CLUSTER, broker_name=NAME, broker_id=broker_id, broker_address=address)
        record = decided(record, request, live)
        live[broker_id] = LiveReplica(broker_id, address=address, epoch=epoch, max_offset=said.end)
        record = decided(record, ElectMaster(broker_id=broker_id), live)
        assert record.master_broker_id == (1 if broker_id == 1 else None)
    assert record.master_epoch == epoch + 1


def test_a_master_without_its_data_is_not_elected() -> None:
    """The wrong volume under the right name: it reports less than its mark."""
    record = record_of(judged(STATIC, STATIC), group="orders")
    assert [one.reserved_for for one in record.replicas.values()] == ["orders-1", "orders-2"]
    request = RegisterBroker(cluster_name=CLUSTER, broker_name=NAME, broker_id=1, broker_address="10.0.0.1:10911")
    record = decided(record, request, {})
    live = {1: LiveReplica(1, address="10.0.0.1:10911", epoch=1, max_offset=STATIC.end - 1)}
    assert decided(record, ElectMaster(broker_id=1), live).master_broker_id is None


def adopt(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["adopt", *map(str, arguments)])


def test_the_commands_from_stores_to_a_record(tmp_path: Path) -> None:
    whose = ("--cluster", CLUSTER, "--broker-name", NAME)
    reports = []
    for name in ("one", "two"):
        write_store(tmp_path / name, begin=FILE_BYTES)
        done = adopt("check", tmp_path / name, "--say", tmp_path / "said")
        assert done.exit_code == 0, done.output
        reports.append(tmp_path / f"{name}.json")
        reports[-1].write_text(done.stdout)
        assert (tmp_path / "said").read_text() == done.stdout.strip()
    begin = ("begin", *reports, *whose, "--store", f"file:{tmp_path / 'records'}")
    assert "nothing was done" in adopt(*begin).output
    assert not (tmp_path / "records").exists()
    for expected in ("absent", "same"):
        done = adopt(*begin, "--yes")
        assert (done.exit_code, f'"record": "{expected}"' in done.output) == (0, True), done.output
    done = adopt("prepare", tmp_path / "two", *whose, "--broker-id", 2, "--yes")
    assert msgspec.json.decode(done.stdout, type=StoreReport).identity == identity(2)
    # Once it goes on under another record, nothing begins anew.
    prepare(Place(tmp_path / "one"), identity(1))
    reports[0].write_bytes(msgspec.json.encode(replace(inspect(Place(tmp_path / "one")), epochs=EPOCHS)))
    refused = adopt("begin", reports[0], *whose, "--store", f"file:{tmp_path / 'records'}", "--yes")
    assert refused.exit_code == 2
    assert "the store holds another record" in refused.output


def test_a_blocked_plan_writes_nothing_and_is_exit_code_2(tmp_path: Path) -> None:
    write_store(tmp_path / "one")
    (tmp_path / "one.json").write_text(adopt("check", tmp_path / "one").stdout)
    behind = replace(inspect(Place(tmp_path / "one")), end=5)
    (tmp_path / "two.json").write_bytes(msgspec.json.encode(behind))
    whose = ("--cluster", CLUSTER, "--broker-name", NAME, "--store", f"file:{tmp_path / 'records'}", "--yes")
    done = adopt("begin", tmp_path / "one.json", tmp_path / "two.json", *whose)
    assert done.exit_code == 2
    assert "BLOCKS NotCaughtUp" in done.output
    assert not (tmp_path / "records").exists()


def test_a_store_that_cannot_be_read_is_exit_code_2_and_said(tmp_path: Path) -> None:
    done = adopt("check", tmp_path, "--say", tmp_path / "said")
    assert done.exit_code == 2
    assert "there is no commit log" in done.stderr
    assert "there is no commit log" in (tmp_path / "said").read_text()


def test_a_report_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("{}")
    done = adopt("begin", tmp_path / "one.json", "--cluster", "c", "--broker-name", "b", "--store", "memory")
    assert done.exit_code == 2
    assert "Invalid value for REPORTS" in done.output


def test_claims_without_an_api_server_is_exit_code_2(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        " clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}"
    )
    whose = ("--cluster", CLUSTER, "--broker-name", NAME, "--image", "i:1", "--kubeconfig", config)
    done = adopt("claims", "orders", "--claim", "store-0:store", *whose, "--yes")
    assert done.exit_code == 2
    assert done.stderr.startswith("adopt: ")
    assert "127.0.0.1:1" in done.stderr
