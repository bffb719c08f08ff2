"""The reader of mqadmin's output, on output recorded from mqadmin 5.5.0 against the real Java controller."""

from __future__ import annotations

import pytest

from tests.real.parts import mqadmin_output as read

METADATA = """
#ControllerGroup\trec
#ControllerLeaderId\tn0
#ControllerLeaderAddress\t127.0.0.2:28877
#Peer:\tn0:127.0.0.2:28877
"""
SYNC_STATE_SET = """
#brokerName\tbroker-a
#MasterBrokerId\t1
#MasterAddr\t127.0.0.2:31911
#MasterEpoch\t1
#SyncStateSetEpoch\t2
#SyncStateSetNums\t2

InSyncReplica:\tReplicaIdentity{brokerName='broker-a', brokerId=1, brokerAddress='127.0.0.2:31911', alive=true}

InSyncReplica:\tReplicaIdentity{brokerName='broker-a', brokerId=2, brokerAddress='127.0.0.2:31921', alive=true}

NotInSyncReplica:\tReplicaIdentity{brokerName='broker-a', brokerId=3, brokerAddress='127.0.0.2:31931', alive=false}
"""
EPOCHS = """
#clusterName\tDefaultCluster
#brokerName\tbroker-a
#brokerAddr\t127.0.0.2:31921
#brokerId\t2
#Epoch: EpochEntry{epoch=1, startOffset=0, endOffset=1275}
#Epoch: EpochEntry{epoch=2, startOffset=1275, endOffset=1517}

#clusterName\tDefaultCluster
#brokerName\tbroker-a
#brokerAddr\t127.0.0.2:31911
#brokerId\t0
#Epoch: EpochEntry{epoch=1, startOffset=0, endOffset=1275}
"""


def test_controller_metadata() -> None:
    assert read.controller_metadata(METADATA)["ControllerLeaderAddress"] == "127.0.0.2:28877"


def test_sync_state_set() -> None:
    [shown] = read.sync_state_sets(SYNC_STATE_SET)
    assert (shown.master_broker_id, shown.master_address) == (1, "127.0.0.2:31911")
    assert (shown.master_epoch, shown.sync_state_set_epoch) == (1, 2)
    assert [replica.broker_id for replica in shown.in_sync] == [1, 2]
    assert [(replica.broker_id, replica.alive) for replica in shown.not_in_sync] == [(3, False)]


def test_no_master_is_none_and_an_unknown_group_is_empty() -> None:
    without = SYNC_STATE_SET.replace("#MasterBrokerId\t1", "#MasterBrokerId\tnull").replace(
        "127.0.0.2:31911\n#", "null\n#"
    )
    assert read.sync_state_sets(without)[0].master_broker_id is None
    assert read.sync_state_sets(without)[0].master_address is None
    assert read.sync_state_sets("\n") == []


def test_broker_epochs() -> None:
    slave, master = read.broker_epochs(EPOCHS)
    assert [(entry.epoch, entry.start_offset, entry.end_offset) for entry in slave.entries] == [
        (1, 0, 1275),
        (2, 1275, 1517),
    ]
    assert (master.broker_id, master.address) == (0, "127.0.0.2:31911")


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (read.controller_metadata, "Connect failed"),
        (read.sync_state_sets, SYNC_STATE_SET.replace("#SyncStateSetNums\t2", "#SyncStateSetNums\t3")),
        (read.sync_state_sets, SYNC_STATE_SET.replace("brokerId=2", "brokerId=two")),
        (read.broker_epochs, EPOCHS.replace("EpochEntry", "Entry")),
    ],
    ids=["no metadata", "wrong count", "no id", "no entries"],
)
def test_what_is_not_understood_is_an_error(reader: object, text: str) -> None:
    assert callable(reader)
    with pytest.raises(read.MqadminOutputError):
        reader(text)
