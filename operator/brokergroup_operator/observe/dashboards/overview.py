"""Overview: is any group in trouble, and which one?"""

from brokergroup_operator.observe.dashboards.model import (
    BLUE,
    BY_GROUP,
    BY_MEMBER,
    CHANGES_OF_MASTER,
    FEW_IS_GOOD,
    GREEN,
    RED,
    SELECT,
    YELLOW,
    Dashboard,
    Panel,
)
from brokergroup_operator.observe.dashboards.shapes import how_many_groups, ranking
from metric_names import (
    CONDITION,
    FAILOVERS_TOTAL,
    GROUP_WRITABLE,
    LAST_INCIDENT_TIMESTAMP_SECONDS,
    MASTER_EPOCH,
    REPLICA_LAG_BYTES,
    SYNC_STATE_SET_SIZE,
    UNAVAILABLE_SECONDS_TOTAL,
    UNFENCED,
)

_MIB = float(1 << 20)
_CONDITION = f'{CONDITION}{{namespace=~"$namespace", broker_group=~"$broker_group", condition="%s"}}'


_LAST_INCIDENT = (
    f"max by (namespace, broker_group, incident, cause, outcome) ({LAST_INCIDENT_TIMESTAMP_SECONDS}{SELECT})"
)

OVERVIEW = Dashboard(
    uid="brokergroup-overview",
    title="Broker groups: overview",
    description="Is any group in trouble, and which one? Go on from here to Group and Failover.",
    annotations=(CHANGES_OF_MASTER,),
    panels=(
        how_many_groups(
            "How many groups are there?",
            "Groups that an operator pod has read a record of. Fewer than yesterday: one was deleted, or the "
            "operator cannot read it.",
            are=f"{BY_GROUP} ({MASTER_EPOCH}{SELECT})",
            thresholds=((None, BLUE),),
            none_is_zero=False,
        ),
        how_many_groups(
            "How many groups take no writes?",
            "No master is granted, or it has not confirmed its role. More than 0 for longer than a failover: "
            "BrokerGroupNoMaster.",
            are=f"{BY_GROUP} ({GROUP_WRITABLE}{SELECT}) == 0",
        ),
        how_many_groups(
            "How many groups must not lose their master now?",
            "FailoverSafe is False. Do not drain their nodes; kubectl brokergroup explain GROUP says what is missing.",
            are=f"{BY_GROUP} ({_CONDITION % 'FailoverSafe'}) == 0",
            thresholds=((None, GREEN), (1.0, YELLOW)),
        ),
        how_many_groups(
            "How many groups wait for a person?",
            "Stalled is True: nothing goes on by itself. Its reason names what to do (docs/tasks/failure-modes.md).",
            are=f"{BY_GROUP} ({_CONDITION % 'Stalled'}) == 1",
        ),
        Panel(
            question="When could each group not be written to?",
            says=(
                "Red is time without a writable master. A failover is a sliver of a second or a few; anything "
                "wider is an outage."
            ),
            kind="state-timeline",
            width=24,
            mappings=((0, "no writes", RED), (1, "writable", GREEN)),
            thresholds=((None, RED), (1.0, GREEN)),
            queries=((f"{BY_GROUP} ({GROUP_WRITABLE}{SELECT})", "{{namespace}}/{{broker_group}}"),),
        ),
        ranking(
            "Which groups have the fewest members in sync?",
            "Below the group's minimum a Strict group refuses writes; at 1 a lost disk loses messages.",
            f"bottomk(10, {BY_GROUP} ({SYNC_STATE_SET_SIZE}{SELECT}))",
            thresholds=((None, RED), (2.0, YELLOW), (3.0, GREEN)),
        ),
        ranking(
            "Which members are furthest behind?",
            "Log that the master has and the member has not. One that stays far behind leaves the "
            "SyncStateSet: BrokerGroupReplicaLagHigh.",
            f"topk(10, {BY_MEMBER} ({REPLICA_LAG_BYTES}{SELECT}))",
            of="{{broker_group}} {{broker_id}}",
            unit="bytes",
            thresholds=((None, GREEN), (64 * _MIB, YELLOW), (1024 * _MIB, RED)),
        ),
        Panel(
            question="When did each group change its master last?",
            says="Seconds since the last failover or switchover that an operator pod carried out since it began.",
            kind="table",
            unit="s",
            queries=(
                (
                    f"time() - {_LAST_INCIDENT}",
                    "",
                ),
            ),
        ),
        ranking(
            "What caused the failovers of the last day?",
            "By cause, planned ones too. Several crashes of one group: BrokerGroupFlapping. Mostly "
            "partitions: look at the network.",
            f"sum by (cause) (increase({FAILOVERS_TOTAL}{SELECT}[1d]))",
            of="{{cause}}",
            thresholds=((None, GREEN), (3.0, YELLOW), (10.0, RED)),
        ),
        ranking(
            "Which groups were longest without writes?",
            "Seconds in the chosen range, from the fault until a write could be acknowledged again.",
            f"topk(10, sum by (namespace, broker_group) (increase({UNAVAILABLE_SECONDS_TOTAL}{SELECT}[$__range])))",
            unit="s",
            thresholds=((None, GREEN), (10.0, YELLOW), (60.0, RED)),
        ),
        Panel(
            question="Is the promise of any group withdrawn?",
            says=(
                "1: a silent master was replaced and its death is not confirmed. It may wake and acknowledge what is "
                "lost: BrokerGroupUnfenced."
            ),
            kind="timeseries",
            thresholds=FEW_IS_GOOD,
            queries=((f"{BY_GROUP} ({UNFENCED}{SELECT})", "{{namespace}}/{{broker_group}}"),),
        ),
    ),
)
