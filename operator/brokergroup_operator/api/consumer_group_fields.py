"""RocketMQCluster.spec.consumerGroups: subscription groups of every broker group, in RocketMQ's own terms."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
from brokergroup_operator.api.rules import Rule

MAX_CONSUMER_GROUPS = 256
# The name of the retry topic, %RETRY% and the group's, must fit into a topic's 127 characters (TopicValidator of RocketMQ 5.5.0).
LONGEST_NAME = 120
# MixAll of RocketMQ 5.5.0, and the two names that this operator uses at brokers.
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER", "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "__MONITOR_CONSUMER", "DEFAULT_CONSUMER",
    "CID_ONS-HTTP-PROXY", "BROKERGROUP_OPERATOR", "BROKERGROUP_OPERATOR_PASSING",
)  # fmt: skip
SYSTEM_GROUP_PREFIXES: Final = ("CID_RMQ_SYS_", "CID_ONSAPI_")
# Settings that a Python replica does not act on, under their names in RocketMQ and here.
ONLY_JAVA: Final = ("consumeBroadcastEnable", "consumeMessageOrderly", "retryQueueNums")


class ConsumerGroupSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """A consumer group of every broker group of the cluster. A setting that is absent stays as the brokers have it."""

    name: Annotated[
        str,
        bounds.judged_by_the_api(f"^[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}$", LONGEST_NAME, 1),
        Meta(description="Name of the consumer group. Names that RocketMQ uses itself are rejected."),
    ]
    consume_enable: Annotated[
        bool | None,
        Meta(
            description="Whether brokers give it messages. false stops its consumers; they go on where they were. Absent: as"
            " at the broker; of a new group true."
        ),
    ] = None
    consume_broadcast_enable: Annotated[
        bool | None,
        Meta(
            description="Whether its consumers may use the message model BROADCASTING (Java brokers). Absent: as at the broker;"
            " of a new group true."
        ),
    ] = None
    consume_message_orderly: Annotated[
        bool | None,
        Meta(
            description="Whether a Proxy gives it the messages of a message group in order, one after the other (Java brokers)."
            " Absent: as at the broker; of a new group false."
        ),
    ] = None
    retry_max_times: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None,
        Meta(
            description="How often a message that was not consumed is delivered again, unless the consumer says how often;"
            " then it goes to the dead letters. Absent: as at the broker; of a new group 16."
        ),
    ] = None
    retry_queue_nums: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        Meta(
            description="Number of queues of its retry topic in each broker group (Java brokers); a retry topic that has fewer"
            " gets as many. Absent: as at the broker; of a new group 1."
        ),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{' && '.join(f'!self.name.startsWith({prefix!r})' for prefix in SYSTEM_GROUP_PREFIXES)}"
            f" && !(self.name in [{', '.join(repr(name) for name in SYSTEM_GROUPS)}])",
            "consumerGroups: RocketMQ or this operator uses this name itself, choose another",
            field_path=".name",
        ),
    )
