"""Group: which member is what, who is in sync, and what is missing?"""

from brokergroup_operator.observe.dashboards.model import (
    BLUE,
    BY_GROUP,
    BY_MEMBER,
    CHANGES_OF_MASTER,
    GREEN,
    RED,
    SELECT,
    YELLOW,
    Dashboard,
    Panel,
)
from brokergroup_operator.observe.dashboards.shapes import of_each_group
from metric_names import (
    CONDITION,
    ELIGIBLE_SIZE,
    EPOCH_JUMP_WAITING,
    HEARTBEAT_AGE_SECONDS,
    LOST_SEATS,
    MASTER_EPOCH,
    MEMBER_PLACE,
    MEMBER_ROLE,
    METADATA_DIFFERENCES,
    REPLICA_LAG_BYTES,
    REPLICATION_BYTES_PER_SECOND,
    ROLE_ABSENT,
    ROLE_IN_SYNC,
    ROLE_MASTER,
    ROLE_OUT_OF_SYNC,
    SYNC_STATE_SET_EPOCH,
    SYNC_STATE_SET_SIZE,
    UNHEARD_MEMBERS,
    UNLINKED_MEMBERS,
)

_MIB = float(1 << 20)
# One number a role, so that a lane shows a member's whole life.
_ROLES = ((0, ROLE_ABSENT, RED), (1, ROLE_OUT_OF_SYNC, YELLOW), (2, ROLE_IN_SYNC, "blue"), (3, ROLE_MASTER, GREEN))
_ROLE_QUERY = " or ".join(
    f'{value} * ({MEMBER_ROLE}{{namespace=~"$namespace", broker_group=~"$broker_group", role="{role}"}} == 1)'
    for value, role, _ in _ROLES
)

GROUP = Dashboard(
    uid="brokergroup-group",
    title="Broker groups: group",
    description="Which member is what, who is in sync, and what is missing?",
    annotations=(CHANGES_OF_MASTER,),
    panels=(
        Panel(
            question="Which role had each member when?",
            says=(
                "Green is the master; there must be one at a time. Orange catches up. Red is not heard: its pod "
                "is away, or cut off."
            ),
            kind="state-timeline",
            width=24,
            mappings=_ROLES,
            thresholds=((None, RED), (1.0, YELLOW), (2.0, "blue"), (3.0, GREEN)),
            queries=((f"max by (broker_group, broker_id) ({_ROLE_QUERY})", "{{broker_group}} {{broker_id}}"),),
        ),
        of_each_group(
            "How many members have every acknowledged message?",
            "The SyncStateSet, and who left it while nothing could be acknowledged without them (eligible). "
            "Both may be elected cleanly.",
            {"in the set": SYNC_STATE_SET_SIZE, "eligible": ELIGIBLE_SIZE},
            thresholds=((None, RED), (2.0, GREEN)),
        ),
        Panel(
            question="How far is each member behind?",
            says="Bytes of log. A saw-tooth is a follower at work; a slope is one that does not keep up.",
            kind="timeseries",
            unit="bytes",
            thresholds=((None, GREEN), (64 * _MIB, YELLOW), (1024 * _MIB, RED)),
            queries=((f"{BY_MEMBER} ({REPLICA_LAG_BYTES}{SELECT})", "{{broker_group}} {{broker_id}}"),),
        ),
        Panel(
            question="How fast does each member copy the log?",
            says=(
                "Bytes a second over the link from the master, one second out of five. Lag that grows beside a flat "
                "speed: network or disk of that member carry no more. 0 beside lag: the link stands still."
            ),
            kind="timeseries",
            unit="Bps",
            thresholds=((None, BLUE),),
            queries=((f"{BY_MEMBER} ({REPLICATION_BYTES_PER_SECOND}{SELECT})", "{{broker_group}} {{broker_id}}"),),
        ),
        Panel(
            question="How long ago was each member heard?",
            says="Past the heartbeat timeout (3 s by default) a master is suspected and asked itself.",
            kind="timeseries",
            unit="s",
            thresholds=((None, GREEN), (3.0, RED)),
            queries=(
                (
                    f"min by (broker_group, broker_id) ({HEARTBEAT_AGE_SECONDS}{SELECT})",
                    "{{broker_group}} {{broker_id}}",
                ),
            ),
        ),
        Panel(
            question="When did the epochs change?",
            says=(
                "Each step of the master epoch is an election or a cure; each of the set's epoch is a member that "
                "joined or left."
            ),
            kind="timeseries",
            queries=(
                (f"{BY_GROUP} ({MASTER_EPOCH}{SELECT})", "{{broker_group}} master"),
                (f"{BY_GROUP} ({SYNC_STATE_SET_EPOCH}{SELECT})", "{{broker_group}} set"),
            ),
        ),
        Panel(
            question="Which conditions held when?",
            says="As of the status. FailoverSafe, Available and Ready should be 1; Stalled should be 0.",
            kind="state-timeline",
            mappings=((0, "False", "blue"), (1, "True", "purple")),
            thresholds=((None, "blue"), (1.0, "purple")),
            queries=((f"max by (broker_group, condition) ({CONDITION}{SELECT})", "{{broker_group}} {{condition}}"),),
        ),
        of_each_group(
            "Do followers have the master's topics, groups and offsets?",
            "Things that a follower lacks for longer than a copy takes. A switchover passes over it: "
            "BrokerGroupMetadataDiverged.",
            {"": METADATA_DIFFERENCES},
        ),
        of_each_group(
            "Does the master replicate to every living member?",
            "Members that live and have no link to the master: BrokerGroupMembersUnlinked.",
            {"": UNLINKED_MEMBERS},
        ),
        of_each_group(
            "Is every member that runs heard?",
            "Members whose process runs, and whose heartbeats no operator pod receives. They are no failover "
            "candidates: BrokerGroupMembersUnheard.",
            {"": UNHEARD_MEMBERS},
        ),
        of_each_group(
            "Was data lost that an election needs?",
            "Lost seats: the last holders of every acknowledged message came back with less. Epoch jump: a "
            "broker is too far ahead to be believed. Both wait for a person.",
            {"lost seats": LOST_SEATS, "epoch jump": EPOCH_JUMP_WAITING},
        ),
        Panel(
            question="Where is each member?",
            says=(
                "Node, zone and version as the operator knows them; 1 is the master. Two members on one node go "
                "together."
            ),
            kind="table",
            queries=((f"max by (broker_group, broker_id, node, zone, version) ({MEMBER_PLACE}{SELECT})", ""),),
        ),
    ),
)
