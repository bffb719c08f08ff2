"""The five dashboards: what each panel asks, what to read from it, and when to act."""

import metric_names as names
from brokergroup_operator.observe.dashboards.model import (
    BLUE,
    BY_GROUP,
    BY_MEMBER,
    EACH_GROUP,
    EACH_MEMBER,
    FEW_IS_GOOD,
    GREEN,
    RED,
    SELECT,
    YELLOW,
    Dashboard,
    bars,
    heatmap,
    how_many_groups,
    lines,
    number,
    of_each_group,
    stripes,
    table,
)


def _in_range(counter: str) -> str:
    """How much a counter rose in the dashboard's range. A rare event is not between two points of a graph, but it is in there."""
    return f"increase({counter}{SELECT}[$__range])"


def _that_happened(counts: str) -> str:
    """Only what is not 0, most first, else one 0: of 32 causes and outcomes a reader looks for the few that there were."""
    return f"sort_desc({counts} > 0 or on() vector(0))"


# Overview: is any group in trouble, and which one?
_MIB = float(1 << 20)
_UNAVAILABLE = f"{names.UNAVAILABLE_SECONDS_TOTAL}{SELECT}"
_CONDITION = f'{names.CONDITION}{{namespace=~"$namespace", broker_group=~"$broker_group", condition="%s"}}'
_LAST_INCIDENT = (
    f"max by (namespace, broker_group, incident, cause, outcome) ({names.LAST_INCIDENT_TIMESTAMP_SECONDS}{SELECT})"
)

OVERVIEW = Dashboard(
    uid="brokergroup-overview",
    title="Broker groups: overview",
    description="Is any group in trouble, and which one? Go on from here to Group and Failover.",
    panels=(
        how_many_groups(
            "How many groups are there?",
            "Groups that an operator pod has read a record of. Fewer than yesterday: one was deleted, or the operator "
            "cannot read it.",
            f"{BY_GROUP} ({names.MASTER_EPOCH}{SELECT})",
            thresholds=((None, BLUE),),
            none_is_zero=False,
        ),
        how_many_groups(
            "How many groups take no writes?",
            "No master is granted, or it has not confirmed its role. More than 0 for longer than a failover: "
            "BrokerGroupNoMaster.",
            f"{BY_GROUP} ({names.GROUP_WRITABLE}{SELECT}) == 0",
        ),
        how_many_groups(
            "How many groups are not FailoverSafe?",
            "They must not lose their master: drain none of their nodes. kubectl brokergroup explain GROUP says what is missing.",
            f"{BY_GROUP} ({_CONDITION % 'FailoverSafe'}) == 0",
            thresholds=((None, GREEN), (1.0, YELLOW)),
        ),
        how_many_groups(
            "How many groups wait for a person?",
            "Stalled is True: nothing goes on by itself. Its reason names what to do (docs/tasks/failure-modes.md).",
            f"{BY_GROUP} ({_CONDITION % 'Stalled'}) == 1",
        ),
        stripes(
            "When could each group not be written to?",
            "Red is time without a writable master. A failover is a sliver of a second or a few; anything wider is an "
            "outage.",
            {EACH_GROUP: f"{BY_GROUP} ({names.GROUP_WRITABLE}{SELECT})"},
            width=24,
            mappings=((0, "no writes", RED), (1, "writable", GREEN)),
            thresholds=((None, RED), (1.0, GREEN)),
        ),
        bars(
            "Which groups have the fewest members in sync?",
            "Below the group's minimum a Strict group refuses writes; at 1 a lost disk loses messages.",
            {EACH_GROUP: f"bottomk(10, {BY_GROUP} ({names.SYNC_STATE_SET_SIZE}{SELECT}))"},
            thresholds=((None, RED), (2.0, YELLOW), (3.0, GREEN)),
        ),
        bars(
            "Which members are furthest behind?",
            "Log that the master has and the member has not. One that stays far behind leaves the SyncStateSet: "
            "BrokerGroupReplicaLagHigh.",
            {EACH_MEMBER: f"topk(10, {BY_MEMBER} ({names.REPLICA_LAG_BYTES}{SELECT}))"},
            unit="bytes",
            thresholds=((None, GREEN), (64 * _MIB, YELLOW), (1024 * _MIB, RED)),
        ),
        table(
            "When did each group change its master last?",
            "Seconds since the last failover or switchover that an operator pod carried out since it began.",
            {"": f"time() - {_LAST_INCIDENT}"},
            unit="s",
        ),
        bars(
            "What caused the failovers of the last day?",
            "By cause, planned ones too. Several crashes of one group: BrokerGroupFlapping. Mostly partitions: look "
            "at the network.",
            {"{{cause}}": f"sum by (cause) (increase({names.FAILOVERS_TOTAL}{SELECT}[1d]))"},
            thresholds=((None, GREEN), (3.0, YELLOW), (10.0, RED)),
        ),
        bars(
            "Which groups were longest without writes?",
            "Seconds in the chosen range, from the fault until a write could be acknowledged again.",
            {EACH_GROUP: f"topk(10, sum by (namespace, broker_group) ({_in_range(names.UNAVAILABLE_SECONDS_TOTAL)}))"},
            unit="s",
            thresholds=((None, GREEN), (10.0, YELLOW), (60.0, RED)),
        ),
        lines(
            "Is the promise of any group withdrawn?",
            "1: a silent master was replaced and its death is not confirmed. It may wake and acknowledge what is "
            "lost: BrokerGroupUnfenced.",
            {EACH_GROUP: f"{BY_GROUP} ({names.UNFENCED}{SELECT})"},
            thresholds=FEW_IS_GOOD,
        ),
    ),
)


# Group: which role has each member, which are in sync, and what is missing?
# One number a role, so that a lane shows a member's whole life.
_ROLES = (
    (0, names.ROLE_ABSENT, RED),
    (1, names.ROLE_OUT_OF_SYNC, YELLOW),
    (2, names.ROLE_IN_SYNC, "blue"),
    (3, names.ROLE_MASTER, GREEN),
)
_ROLE_QUERY = " or ".join(
    f'{value} * ({names.MEMBER_ROLE}{{namespace=~"$namespace", broker_group=~"$broker_group", role="{role}"}} == 1)'
    for value, role, _ in _ROLES
)

GROUP = Dashboard(
    uid="brokergroup-group",
    title="Broker groups: group",
    description="Which role has each member, which are in sync, and what is missing?",
    panels=(
        stripes(
            "Which role had each member when?",
            "Green is the master; there must be one at a time. Orange catches up. Red is not heard: its pod is away, "
            "or cut off.",
            {EACH_MEMBER: f"max by (broker_group, broker_id) ({_ROLE_QUERY})"},
            width=24,
            mappings=_ROLES,
            thresholds=((None, RED), (1.0, YELLOW), (2.0, "blue"), (3.0, GREEN)),
        ),
        of_each_group(
            "How many members have every acknowledged message?",
            "The SyncStateSet, and members that left it while nothing could be acknowledged without them (eligible). Both may "
            "be elected cleanly.",
            {"in the set": names.SYNC_STATE_SET_SIZE, "eligible": names.ELIGIBLE_SIZE},
            thresholds=((None, RED), (2.0, GREEN)),
        ),
        lines(
            "How far is each member behind?",
            "Bytes of log. A saw-tooth is a follower at work; a slope is one that does not keep up.",
            {EACH_MEMBER: f"{BY_MEMBER} ({names.REPLICA_LAG_BYTES}{SELECT})"},
            unit="bytes",
            thresholds=((None, GREEN), (64 * _MIB, YELLOW), (1024 * _MIB, RED)),
        ),
        lines(
            "How fast does each member copy the log?",
            "Bytes a second over the link from the master, one second out of five. Lag that grows beside a flat "
            "speed: network or disk of that member carry no more. 0 beside lag: the link stands still.",
            {EACH_MEMBER: f"{BY_MEMBER} ({names.REPLICATION_BYTES_PER_SECOND}{SELECT})"},
            unit="Bps",
            thresholds=((None, BLUE),),
        ),
        lines(
            "How long ago was each member heard?",
            "Past the heartbeat timeout (3 s by default) a master is suspected, and sent a request.",
            {EACH_MEMBER: f"min by (broker_group, broker_id) ({names.HEARTBEAT_AGE_SECONDS}{SELECT})"},
            unit="s",
            thresholds=((None, GREEN), (3.0, RED)),
        ),
        lines(
            "When did the epochs change?",
            "Each step of the master epoch is an election or a cure; each of the set's epoch is a member that joined "
            "or left.",
            {
                "{{broker_group}} master": f"{BY_GROUP} ({names.MASTER_EPOCH}{SELECT})",
                "{{broker_group}} set": f"{BY_GROUP} ({names.SYNC_STATE_SET_EPOCH}{SELECT})",
            },
        ),
        stripes(
            "Which conditions held when?",
            "As of the status. FailoverSafe, Available and Ready should be 1; Stalled should be 0.",
            {"{{broker_group}} {{condition}}": f"max by (broker_group, condition) ({names.CONDITION}{SELECT})"},
            mappings=((0, "False", "blue"), (1, "True", "purple")),
            thresholds=((None, "blue"), (1.0, "purple")),
        ),
        of_each_group(
            "Do followers have the master's topics, groups and offsets?",
            "Things that a follower lacks for longer than a copy takes. A switchover passes over it: "
            "BrokerGroupMetadataDiverged.",
            {"": names.METADATA_DIFFERENCES},
        ),
        of_each_group(
            "Does the master replicate to every living member?",
            "Members that live and have no link to the master: BrokerGroupMembersUnlinked.",
            {"": names.UNLINKED_MEMBERS},
        ),
        of_each_group(
            "Is every member that runs heard?",
            "Members whose process runs, and whose heartbeats no operator pod receives. They are no failover "
            "candidates: BrokerGroupMembersUnheard.",
            {"": names.UNHEARD_MEMBERS},
        ),
        of_each_group(
            "Was data lost that an election needs?",
            "Lost seats: the last holders of every acknowledged message came back with less. Epoch jump: a broker is "
            "too far ahead to be accepted. Both wait for a person.",
            {"lost seats": names.LOST_SEATS, "epoch jump": names.EPOCH_JUMP_WAITING},
        ),
        table(
            "Where is each member?",
            "Node, zone and version as the operator knows them; 1 is the master. Two members on one node go together.",
            {"": f"max by (broker_group, broker_id, node, zone, version) ({names.MEMBER_PLACE}{SELECT})"},
        ),
    ),
)


# Failover: how long does it take, which step, and what did it cost?
_SLOW = ((None, GREEN), (5.0, YELLOW), (30.0, RED))
_OF_PHASE = f'{names.FAILOVER_PHASE_SECONDS}%s{{namespace=~"$namespace", broker_group=~"$broker_group", phase="%s"}}'
_TOTAL = _OF_PHASE % ("_bucket", names.PHASE_TOTAL)


def _quantile(quantile: float) -> str:
    return f"histogram_quantile({quantile}, sum by (le) (increase({_TOTAL}[$__range])))"


# Each change of master has its own series, so one a week counts as one. The histogram of a step begins with the first change of
# master that took that step: its first value is no increase.
_LAST_SEEN = "last_over_time(%s" + SELECT + "[$__range])"
_BEGAN_IN_RANGE = f"max by (incident) ({_LAST_SEEN % names.LAST_INCIDENT_TIMESTAMP_SECONDS}) > time() - $__range_s"
_MEAN = (
    f"sort(avg by (step) (max by (incident, step) ({_LAST_SEEN % names.LAST_INCIDENT_STEP_SECONDS})"
    f" and on (incident) ({_BEGAN_IN_RANGE})))"
)

FAILOVER = Dashboard(
    uid="brokergroup-failover",
    title="Broker groups: failover",
    description="How long does a failover take, which step, and what did it cost?",
    panels=(
        bars(
            "How did the last change of master go, step by step?",
            "Time from the detection to each step. The longest gap is where it waited: before fenced it is the "
            "kubelet, before roleChanged the broker.",
            {
                "{{incident}} {{step}}": f"sort(max by (broker_group, incident, step) ({names.LAST_INCIDENT_STEP_SECONDS}{SELECT}))"
            },
            unit="s",
            width=24,
            thresholds=_SLOW,
        ),
        number(
            "How long is a failover, from the fault to its last step?",
            "Quantiles of the chosen range, switchovers included. The last step is mostly inSync: a write can be acknowledged "
            "again; with a canary it is firstAck: one was. Above 10 s on average: BrokerGroupFailoverSlow.",
            {"half are faster": _quantile(0.5), "95 of 100": _quantile(0.95), "99 of 100": _quantile(0.99)},
            unit="s",
            thresholds=_SLOW,
        ),
        bars(
            "Which step takes the time?",
            "Mean time from the detection to each step, of the changes of master that began in the chosen range.",
            {"{{step}}": _MEAN},
            unit="s",
            thresholds=_SLOW,
        ),
        heatmap(
            "How are the times spread?",
            "Two bands are usual: dead masters in tenths of a second, silent ones in seconds.",
            {"{{le}}": f"sum by (le) (increase({_TOTAL}[$__rate_interval]))"},
            unit="s",
        ),
        bars(
            "How many were there, and how did they end?",
            "In the chosen range. completed is the good one. noEligibleReplica and incomplete: look at the group.",
            {"{{cause}} {{outcome}}": _that_happened(f"sum by (cause, outcome) ({_in_range(names.FAILOVERS_TOTAL)})")},
            thresholds=((None, GREEN), (10.0, YELLOW)),
        ),
        bars(
            "How long was nothing writable, and why?",
            "Seconds in the chosen range, by cause.",
            {
                "{{broker_group}} {{cause}}": _that_happened(
                    f"sum by (broker_group, cause) ({_in_range(names.UNAVAILABLE_SECONDS_TOTAL)})"
                )
            },
            unit="s",
            thresholds=((None, GREEN), (60.0, RED)),
        ),
        bars(
            "How often does each group fail over?",
            "In the chosen range. More than three in a quarter of an hour: BrokerGroupFlapping.",
            {"{{broker_group}}": f"sum by (broker_group) ({_in_range(names.FAILOVERS_TOTAL)})"},
            thresholds=((None, GREEN), (4.0, RED)),
        ),
        number(
            "May messages have been lost?",
            "Unclean elections in the chosen range, and masters replaced without proof of death. Both should be 0.",
            {
                "unclean elections": f"sum({BY_GROUP} ({_in_range(names.UNCLEAN_ELECTIONS_TOTAL)}))",
                "unfenced now": f"sum({BY_GROUP} ({names.UNFENCED}{SELECT}))",
            },
            thresholds=FEW_IS_GOOD,
        ),
    ),
)


# Operator: are its pods there, which requests do they get, which do they refuse?
def _most_by_group(counter: str) -> str:
    return f"topk(5, sum by (namespace, broker_group) ({_in_range(counter)}))"


OPERATOR = Dashboard(
    uid="brokergroup-operator",
    title="Broker groups: operator",
    description="Are the operator's pods there, which requests do they get, which do they refuse?",
    panels=(
        number(
            "How many operator pods answer, and which build?",
            "Below two: the next lost pod leaves every group without a controller (BrokerGroupOperatorPodAlone).",
            {"{{version}} {{revision}}": f"count by (version, revision) ({names.BUILD_INFO})"},
            width=8,
            thresholds=((None, RED), (2.0, GREEN)),
        ),
        lines(
            "What do brokers ask?",
            "Heartbeats are most of it: one a second and broker, at each pod. A fall is brokers that went away, or a "
            "network.",
            {"{{request}}": f"sum by (request) (rate({names.REQUESTS_TOTAL}[$__rate_interval]))"},
            width=16,
            unit="reqps",
        ),
        lines(
            "What is refused?",
            "A few refusals around a failover are usual. A steady rate: BrokerGroupRequestsRefused, "
            "docs/concepts/security.md says what each needs.",
            {
                "{{request}} {{code}}": (
                    f'sum by (request, code) (rate({names.REQUESTS_TOTAL}{{code!="SUCCESS"}}[$__rate_interval]))'
                    ' or on() label_replace(vector(0), "request", "nothing", "", "")'
                )
            },
            unit="reqps",
            thresholds=((None, GREEN), (1.0, YELLOW)),
        ),
        lines(
            "How fast is it answered?",
            "95 of 100 requests are faster. It follows the API server's latency: decisions are written before they "
            "are answered.",
            {
                "{{request_type}}": (
                    "histogram_quantile(0.95, sum by (le, request_type) "
                    f"(rate({names.UPSTREAM_REQUEST_LATENCY}_bucket[$__rate_interval])))"
                )
            },
            unit="µs",
            thresholds=((None, GREEN), (100_000.0, YELLOW), (1_000_000.0, RED)),
        ),
        bars(
            "What did elections decide?",
            "In the chosen range. no_master_elected: no broker that may be master was alive.",
            {"{{result}}": f"sum by (result) ({_in_range(names.ELECTIONS_TOTAL)})"},
        ),
        lines(
            "Do pods get into each other's way?",
            "Commits a second that were refused because another pod's came first: a few around a failover, else 0.",
            {"conflicts": f"sum(rate({names.RECORD_CONFLICTS_TOTAL}{SELECT}[$__rate_interval]))"},
            thresholds=((None, GREEN), (1.0, YELLOW)),
        ),
        bars(
            "What did the safety rules have to mend?",
            "In the chosen range, the five groups with most. Seats lost: disks that came back with less. Records found behind: "
            "etcd was restored. Brokers adopted: ids the record did not know. Cures: links that had to be renewed.",
            {
                "{{broker_group}} seats lost": _most_by_group(names.SEATS_LOST_TOTAL),
                "{{broker_group}} records behind": _most_by_group(names.EPOCH_FLOOR_RAISED_TOTAL),
                "{{broker_group}} brokers adopted": _most_by_group(names.BROKERS_ADOPTED_TOTAL),
                "{{broker_group}} cures": _most_by_group(names.EPOCH_CURES_TOTAL),
            },
            thresholds=FEW_IS_GOOD,
        ),
    ),
)


# SLA and budget: how available was it, how much may still go wrong, and how fast is it going?
_MONTH_MINUTES = 30 * 24 * 60
_PLANNED = "|".join((names.CAUSE_SWITCHOVER, names.CAUSE_DRAIN, names.CAUSE_ROLLING_UPGRADE, names.CAUSE_HIBERNATION))
_ANY = '=~".+"'
_ALLOWED = "(1 - $objective / 100)"


def _writable(window: str) -> str:
    """The part of a window in which each group could be written to, as scraped."""
    return f"avg_over_time(({BY_GROUP} ({names.GROUP_WRITABLE}{SELECT}))[{window}:15s])"


def _burn(window: str) -> str:
    """How many times faster than allowed the budget is being used."""
    return f"(1 - {_writable(window)}) / {_ALLOWED}"


def _lost(matcher: str) -> str:
    selector = f'{{namespace=~"$namespace", broker_group=~"$broker_group", cause{matcher}}}'
    return f"sum by (namespace, broker_group) (increase({names.UNAVAILABLE_SECONDS_TOTAL}{selector}[30d]))"


SLA = Dashboard(
    uid="brokergroup-sla",
    title="Broker groups: SLA and budget",
    description=(
        "How available was it, how much may still go wrong? Rough, from scrapes: a failover between two of them is not seen here."
        " The exact figures are the report's (docs/tasks/sla.md), from the incident log."
    ),
    since="now-7d",
    panels=(
        bars(
            "How available was each group in the chosen range?",
            "Scraped moments in which it was writable. Scrapes miss short outages: right on average, not for one of "
            "them.",
            {EACH_GROUP: _writable("$__range")},
            unit="percentunit",
            thresholds=((None, RED), (0.999, YELLOW), (0.9995, GREEN)),
        ),
        bars(
            "How many minutes of the 30-day budget are left?",
            "What the objective allows in 30 days, less what was lost in the last 30, unplanned and planned. Below 0 "
            "it is broken.",
            {EACH_GROUP: f"{_MONTH_MINUTES} * {_ALLOWED} - ({_lost(_ANY)}) / 60"},
            unit="m",
            thresholds=((None, RED), (5.0, YELLOW), (10.0, GREEN)),
        ),
        lines(
            "How fast is the budget going?",
            "1 is just what is allowed. Above 14.4 for an hour, 6 for six hours: BrokerGroupBudgetBurn.",
            {
                "{{broker_group}} 5 m": _burn("5m"),
                "{{broker_group}} 1 h": _burn("1h"),
                "{{broker_group}} 6 h": _burn("6h"),
            },
            width=24,
            thresholds=((None, GREEN), (6.0, YELLOW), (14.4, RED)),
        ),
        bars(
            "What was lost to faults, what to planned work?",
            "Seconds of the last 30 days. Planned: switchovers, drains, rolling updates. A contract often counts the "
            "first only.",
            {"{{broker_group}} faults": _lost(f'!~"{_PLANNED}"'), "{{broker_group}} planned": _lost(f'=~"{_PLANNED}"')},
            unit="s",
            thresholds=((None, GREEN), (300.0, YELLOW), (1296.0, RED)),
        ),
        bars(
            "Which causes cost the most?",
            "Seconds of the last 30 days over all chosen groups.",
            {"{{cause}}": f"sum by (cause) (increase({_UNAVAILABLE}[30d]))"},
            unit="s",
            thresholds=((None, GREEN), (300.0, YELLOW)),
        ),
    ),
)
