"""The reader of mqadmin's output once more: configuration, HA status, cluster list and refusals, as mqadmin 5.5.0 printed them."""

from __future__ import annotations

import pytest

from tests.real.parts import mqadmin_output as read

CONFIGURATION = """============127.0.0.2:28877============
enableElectUncleanMaster                          =  false
controllerDLegerPeers                             =  n0-127.0.0.2:28877
configBlackList                                   =  configBlackList;configStorePath
metricsGrpcExporterTarget                         =
"""
HA_STATUS = """
#MasterAddr\t127.0.0.2:31911
#MasterCommitLogMaxOffset\t1275
#SlaveNum\t1
#InSyncSlaveNum\t1
#SlaveAddr                        #SlaveAckOffset             #Diff #TransferSpeed(KB/s)          #Status #TransferFromWhere
127.0.0.1:55512                   1275                            0             0.00               OK             1275
"""
CLUSTER_LIST = (
    "#Cluster Name           #Broker Name            #BID  #Addr                  #Version              #SPACE    #ACTIVATED\n"
    "DefaultCluster          broker-a                0     127.0.0.2:31911        V5_5_0                0.2600          true\n"
    "DefaultCluster          broker-a                2     127.0.0.2:31921        V5_5_0                0.2600         false\n"
)
REFUSED = """org.apache.rocketmq.tools.command.SubCommandException: ReElectMasterSubCommand command failed
\tat org.apache.rocketmq.tools.command.controller.ReElectMasterSubCommand.execute(ReElectMasterSubCommand.java:88)
Caused by: org.apache.rocketmq.client.exception.MQBrokerException: CODE: 2012  DESC: Failed to elect a new master
For more information, please visit the url, https://rocketmq.apache.org/docs/bestPractice/06FAQ
"""


def test_a_configuration_is_read_by_controller() -> None:
    assert read.controller_config(CONFIGURATION) == {
        "127.0.0.2:28877": {
            "enableElectUncleanMaster": "false",
            "controllerDLegerPeers": "n0-127.0.0.2:28877",
            "configBlackList": "configBlackList;configStorePath",
            "metricsGrpcExporterTarget": "",
        }
    }


def test_an_ha_status_is_read() -> None:
    [shown] = read.ha_statuses(HA_STATUS)
    assert (shown.master_address, shown.max_offset, shown.in_sync_slaves) == ("127.0.0.2:31911", 1275, 1)
    assert shown.slaves == (read.SlaveShown("127.0.0.1:55512", 1275, 0, in_sync=True),)


def test_a_cluster_list_is_read() -> None:
    first, second = read.cluster_list(CLUSTER_LIST)
    assert first == read.ClusterLine("DefaultCluster", "broker-a", 0, "127.0.0.2:31911", "V5_5_0")
    assert second.broker_id == 2


def test_a_refusal_is_read_and_is_no_election() -> None:
    assert read.refusal(REFUSED) == read.Refusal(2012, "Failed to elect a new master")
    assert read.refusal(CONFIGURATION) is None
    with pytest.raises(read.MqadminOutputError):
        read.election(REFUSED)


@pytest.mark.parametrize(
    "broken", ["", "#MasterAddr\t1:1\n#MasterCommitLogMaxOffset\t1\n#SlaveNum\t2\n#InSyncSlaveNum\t0\n"]
)
def test_what_does_not_look_as_expected_is_an_error(broken: str) -> None:
    reader = read.ha_statuses if broken else read.controller_config
    with pytest.raises(read.MqadminOutputError):
        reader(broken)
