"""Rules of RocketMQCluster.spec. Those of a BrokerGroup hold in its template as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.rocketmq_cluster import BrokerGroupsSpec, ClusterSpec, TopicSpec
from brokergroup_operator.api.rules.group_rules import CONFIG_RULES, HAS_BROKER_IDS
from brokergroup_operator.api.rules.rule import Rule

if TYPE_CHECKING:
    from msgspec import Struct

# Keys of rmq-proxy.json that the operator writes itself.
RESERVED_PROXY_KEYS: Final = ("proxyMode", "rocketMQClusterName", "namesrvAddr", "grpcServerPort", "remotingListenPort")

# A broker makes these itself, and refuses to make one of them when it is asked (TopicValidator of RocketMQ 5.5.0).
SYSTEM_TOPICS: Final = (
    "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
)  # fmt: skip
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"

# On a whole object, by its type.
OBJECT_RULES: Final[dict[type[Struct], tuple[Rule, ...]]] = {
    ClusterSpec: (
        Rule(
            "!(has(self.version) && has(self.image))",
            "version and image exclude each other: the image says which version it is",
            field_path=".image",
        ),
        Rule(
            "!has(self.version) || self.brokerGroups.template.implementation != 'rocketmq'"
            " || has(self.brokerGroups.template.version) || has(self.brokerGroups.template.image)"
            f" || {HAS_BROKER_IDS.replace('self.', 'self.version.')}",
            "version must be 5.1.1 or later where the groups take it: earlier brokers have no persistent broker id",
            field_path=".version",
        ),
        # A broker makes these itself (TopicConfigManager of RocketMQ 5.5.0), and refuses to make them when it is asked.
        Rule(
            "self.topics.all(topic, topic.name != self.brokerGroups.template.brokerClusterName"
            " && topic.name != self.brokerGroups.template.brokerClusterName + '_REPLY_TOPIC')",
            "topics: brokers use brokerClusterName, and it with _REPLY_TOPIC, as topics of their own; choose another name",
            field_path=".topics",
        ),
    ),
    BrokerGroupsSpec: (
        Rule(
            "size(self.template.nameServers) == 0",
            "template.nameServers must be empty: the groups register with the cluster's own NameServers",
            field_path=".template.nameServers",
        ),
        Rule(
            "!has(self.template.brokerName)",
            "template.brokerName must be absent: each group's brokerName is its own name",
            field_path=".template.brokerName",
        ),
        Rule(
            "self.overrides.all(one, one.index < self.count)",
            "overrides: an index must be below count",
            field_path=".overrides",
        ),
    ),
    TopicSpec: (
        Rule(
            f"!self.name.startsWith('{SYSTEM_TOPIC_PREFIX}') && !self.name.startsWith('{SYSTEM_TOPIC_PREFIX.upper()}')"
            f" && !(self.name in [{', '.join(repr(name) for name in SYSTEM_TOPICS)}])",
            "topics: RocketMQ uses this name itself, choose another",
            field_path=".name",
        ),
    ),
}

# On a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {
    ("GroupOverride", "config"): CONFIG_RULES,
    ("ProxySpec", "config"): tuple(
        Rule(f"!('{key}' in self)", f"proxy.config.{key} is set by the operator") for key in RESERVED_PROXY_KEYS
    ),
}
