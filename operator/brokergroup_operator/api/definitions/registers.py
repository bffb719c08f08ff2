"""What others may rely on by name, beside the fields: Events, labels, annotations, finalizers, field managers; and what each means.

They are API as the fields are. `reference.py` prints them; tests/api/test_contract.py asks the code whether it can produce each of
them, and nothing else.
"""

from __future__ import annotations

from typing import Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import OperationType

_OPERATION_EVENTS: Final = {
    "Started": "A `BrokerGroupOperation` of this type begins.",
    "Completed": "It did what it was asked for; its `status.result` has the figures.",
    "Rejected": "Warning. It was not begun; the message says what stood against it.",
    "Failed": "Warning. It was begun and did not reach its end; the message says where it stands.",
}

EVENTS: Final = {
    # Told by the controller plane.
    "MasterElected": "The record has a new master; the message has its epoch and why it was chosen.",
    "UncleanElection": "Warning. The new master was not known to have every acknowledged message: some may be lost.",
    "SyncStateSetExpanded": "Members joined the SyncStateSet.",
    "SyncStateSetShrunk": "Warning. Members left the SyncStateSet: they lag, or are gone.",
    "MasterLost": "Warning. The master was lost; the message has the evidence. Told by the operator pod that elected the next one.",
    "FailoverStarted": "Another master is looked for; the message has what set it off.",
    "FailoverCompleted": "Another master serves; the message has from, to, epoch and milliseconds.",
    "FailoverCancelled": "An election that a person asked for changed nothing.",
    "NoEligibleReplica": "Warning. Nobody who has every acknowledged message can replace the master; writes stand still.",
    "SwitchoverStarted": "A planned change of master begins.",
    "SwitchoverCompleted": "The planned change is done; the message has from, to, epoch and milliseconds.",
    "SwitchoverCancelled": "The planned change was given up; the old master goes on.",
    "SwitchoverRejected": "Warning. A planned change was not begun; the message says what stood against it.",
    "SwitchoverFailed": "Warning. A `BrokerGroupOperation` of type Switchover did not reach its end.",
    "Unfenced": "Warning. A failover could not confirm that the old master is dead: what that one acknowledged since may be lost.",
    "SeatLost": "Warning. A member came back with less than it had held, and is not elected until it has caught up.",
    "EpochFloorRaised": "Warning. The record was behind its brokers and goes on above their epoch.",
    "EpochJump": "Warning. A broker reports an epoch too far above the record; a person has to look.",
    "BrokerAdopted": "A broker that the record did not know is a member again, without a seat.",
    "MetadataDiverged": "Warning. A member lacks topics, groups or offsets that the master has; the message names them.",
    "MetadataCopiedAgain": "A slave went on lacking topics or groups, and was made to copy all of them from the master again.",
    "MembersUnlinked": "Warning. Members are alive and do not replicate from the master.",
    "MembersLinked": "Every living member replicates from the master again.",
    "MembersUnheard": "Warning. Members run and replicate, and no controller hears them; the message names them.",
    "MembersHeard": "Every running member is heard by a controller again.",
    "MemberRelinked": "Warning. The epoch was raised to bring a slave off a wrong link.",
    "CanaryRefused": "Warning. A broker refuses what `monitoring.canary` sends; the message has the user and the right to give.",
    "CanaryAcknowledged": "The canary that was refused is acknowledged again.",
    # Told by the reconcile plane.
    "BrokerIdAssigned": "A new broker id is kept for a pod that is about to be made.",
    "PodCreating": "A member's pod is made.",
    "PodStopping": "A member's pod is stopped on purpose; the message says why.",
    "UnheardMemberReplaced": "Warning. A member that no controller hears is stopped, so that a new process registers.",
    "ScaledOut": "The group grows by members.",
    "ScaledIn": "A member has left, and its id is cleaned from the record.",
    "ReplicaRebuilt": "A member whose volume was given up is cleaned from the record; another follows it.",
    "VolumeLost": "Warning. A member's volume is gone, and with it its id; another member is made.",
    "VolumeDropped": "Warning. A claim is deleted because a Rebuild asked for it.",
    "VolumeResized": "Every volume has the size that the spec asks for.",
    "ClaimBeingDeleted": "Warning. A claim is being deleted under a running pod: its data goes when that pod stops.",
    "EphemeralStorage": "Warning, once. The group's data goes with its pods (`storage.ephemeral`).",
    "ConfigReloaded": "A running broker took changed keys without a restart; the message names them.",
    "ConfigurationDrifted": "Warning. A broker runs with other values than it was given; the message names member, key and values.",
    "ConfigurationAsGiven": "Every broker runs with what it was given again.",
    "ConfigurationPutBack": "Warning. A key that acknowledgements rest on was changed at a broker, and put back; see the message.",
    "RollingUpdateStarted": "Pods run something else than the spec says, and are replaced one by one.",
    "RollingUpdateCompleted": "Every pod runs what the spec says.",
    "Paused": "`maintenance.paused` is in effect.",
    "Resumed": "`maintenance.paused` is over; the group is reconciled again.",
    "Hibernated": "`maintenance.hibernated` is in effect, and no pod runs.",
    "Woken": "`maintenance.hibernated` is over; pods are made again.",
    "PromiseRestored": "The condition `Unfenced` is over: the durability's promise holds again.",
    "Fenced": "Warning. A silent master's pod is being killed before another serves.",
    "DegradedDurability": "Warning. Fewer replicas are in sync than the durability speaks of.",
    "ObjectiveInvalid": "Warning. SLA reports can't go by `spec.slo`; the message names field, value and what is expected.",
    "NotFailoverSafe": "Warning. The master can't be given up without loss any more, and nothing voluntary is the reason.",
    "Orphaned": "Warning. The group was deleted with `--cascade=orphan`: pods, Services, claims and record stay, without failover.",
    "TakenBack": "Pods, Services and the rest that an orphaned group of the name has left are this group's, without a restart.",
    "GroupUnreadable": "Warning. The stored BrokerGroup does not fit this operator's API: it is left as it is.",
    "NotNow": "Warning. The controller plane refused a step of this pass; the next one asks again.",
    "ServedByAnotherOperator": "Warning. The group belongs to another operator's Lease (annotation"
    f" `{names.ANNOTATION_OPERATOR}`) and is left alone.",
    # Of a RocketMQCluster.
    "ClusterReady": "NameServers, groups and proxies are ready.",
    "ClusterUnavailable": "Warning. No NameServer or no Proxy is ready, or a group takes no writes; the message names it.",
    "ClusterNotOurs": "Warning. Objects that have a name of the cluster's parts are there already, and are left alone.",
    "ClusterRefused": "Warning. The API server refused a part of the cluster; the message has its words.",
    "ClusterGroupsBeyondCount": "Warning. `brokerGroups.count` was lowered; the groups beyond it stay until a person deletes them.",
    "ClusterTopicDiffers": "Warning. A declared topic is there with another message type, and is left; the message names it.",
    "ClusterUnreadable": "Warning. The stored RocketMQCluster does not fit this operator's API: it is left as it is.",
    **{
        f"{kind.value}{end}": text
        for kind in OperationType
        for end, text in _OPERATION_EVENTS.items()
        if kind is not OperationType.SWITCHOVER
    },
}

LABELS: Final = {
    names.LABEL_BROKER_GROUP: "On everything of a group: the BrokerGroup's name. All selectors use it.",
    names.LABEL_ROCKETMQ_CLUSTER: "On everything of a RocketMQCluster, its BrokerGroups too: the RocketMQCluster's name.",
    names.LABEL_BROKER_ID: "On a member's pod, claims and Service: its broker id. A pod that lost its disk gets another one.",
    names.LABEL_CLUSTER: "On everything of a group: `spec.brokerClusterName`.",
    names.LABEL_ROLE: "On a pod: `master`, `slave` or `learner`, by the record. It moves at a change of master; the"
    " `<group>-master` Service selects by it.",
    names.LABEL_COMPONENT: "On the operator's own pods: `operator`, whatever the release is called.",
    names.LABEL_APP_NAME: "Kubernetes' own: `rocketmq-broker` on everything of a group.",
    names.LABEL_APP_INSTANCE: "The release's, and by default Argo CD's: on nothing of a group (taken off what older versions made)."
    " On pods of NameServers and Proxies: the RocketMQCluster's name.",
    names.LABEL_APP_COMPONENT: "Kubernetes' own: `broker` on everything of a group.",
    names.LABEL_APP_PART_OF: "Kubernetes' own: `spec.brokerClusterName` on everything of a group.",
    names.LABEL_APP_VERSION: "Kubernetes' own: on a pod, the RocketMQ version, where it is known.",
    names.LABEL_APP_MANAGED_BY: "Kubernetes' own: `brokergroup-operator` on everything that we make.",
    names.LABEL_ZONE: "Kubernetes' own, read and never written: a node's zone, for `failover.preferredZones` and the status.",
    names.LABEL_RACK: "Read and never written: a node's rack, for the breakdowns of the SLA report.",
    names.LABEL_TENANT: "On a BrokerGroup, by whoever likes: whom it is for, for the breakdowns of the SLA report.",
}

ANNOTATIONS: Final = {
    names.ANNOTATION_ACCEPT_EPOCH: "On a BrokerGroup: a number. A person accepts that brokers report a master epoch up to this one,"
    " although it is far above the record's (condition `EpochJump`).",
    names.ANNOTATION_RESTARTED_AT: "On a BrokerGroup: any text. Pods made under another one are restarted one by one, as in a"
    " rolling update. (A `BrokerGroupOperation` of type Restart does the same, and tells when it is over.)",
    names.ANNOTATION_OPERATOR: "On a BrokerGroup, by the operator: namespace and name of the Lease whose holder reconciles it.",
    names.ANNOTATION_REVISION: "On a pod: what it was made from; another one is wanted where it differs. On other children: the"
    " same, so that somebody's change of them is seen.",
    names.ANNOTATION_CONFIG_HASH: "On a pod: the keys of broker.conf that only a start reads.",
    names.ANNOTATION_HOT_CONFIG: "On a pod: the keys that its broker was given last while it runs, as JSON.",
    names.ANNOTATION_HOT_CONFIG_RESTARTS: "On a pod: after how many restarts of its broker container they were given; absent: 0.",
    names.ANNOTATION_ADDRESS: "On a pod: host and port by which its broker is known, where that is not the pod's own"
    " (`network.addressing`). Without a host: at its node's address.",
    names.ANNOTATION_INCIDENT: "On an Event: the id of the failover or switchover that it tells of, as in status, log and metrics.",
    names.ANNOTATION_GROUP_UID: "On a pod: the uid of the BrokerGroup that it was made for. Its fence's key is made from it, also"
    " where that group was orphaned and another of its name has the pod now.",
    names.ANNOTATION_TAKES_BACK: "On a BrokerGroup, by the operator: it is taking back what an orphaned group of its name has left."
    " One that is deleted before that is done leaves everything as it runs, however it is deleted.",
    names.ANNOTATION_LEARNER: "On a pod: `true` where its broker was started as an async learner (`replication.learners`).",
    names.ANNOTATION_OPERATION: "On a pod: the uid of the operation in whose course it was made.",
    names.ANNOTATION_LEAVING: "On a claim: the broker id that is chosen to leave the group. Only such a claim is ever"
    " discarded.",
    names.ANNOTATION_LAST_WRITE: "On a BrokerGroupState: which write it is, so that one with an unknown outcome is known again.",
}

FINALIZERS: Final = {
    names.FINALIZER_BROKER_GROUP: "On a BrokerGroup, until everything that it owns is gone, or free of it (`--cascade=orphan`).",
    names.FINALIZER_FENCE: "On a pod of a silent master, until its containers are reported terminated.",
}

FIELD_MANAGERS: Final = {
    names.FIELD_MANAGER_CONTROLLER: "The record (BrokerGroupState).",
    names.FIELD_MANAGER_RECONCILE: "Children of a group.",
    names.FIELD_MANAGER_CLUSTER: "Parts of a RocketMQCluster.",
    names.FIELD_MANAGER_STATUS: "The status of a group or a RocketMQCluster.",
    names.FIELD_MANAGER_FAILOVERS: "`status.failovers` and `status.lastFailover`, by the operator pod that acted.",
    names.FIELD_MANAGER_ROLE: "Role and broker id on pods.",
}
