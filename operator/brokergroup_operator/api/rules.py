"""CEL rules: `Rule`, and the rules that several structs share.

Rules are part of the CRD, so the API server refuses a bad object with a message that names the field; there is no webhook that
could be down, and no certificate that could expire (docs/concepts/architecture.md). A struct's own rules are its `RULES`, a
field's stand in its `Meta` (`validations`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec import Meta

from brokergroup_operator.api.bounds import LABEL_KEY_PATTERN, LONGEST_LABEL_KEY
from brokergroup_operator.api.times import EXPECTED_ZONE, TIME_ZONES

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject


@dataclass(frozen=True)
class Rule:
    """One entry of x-kubernetes-validations. `field_path` is relative to the object the rule is attached to."""

    rule: str
    message: str
    field_path: str = ""
    reason: str = "FieldValueInvalid"
    # In CEL: replaces the message, to show the value that breaks the rule.
    message_expression: str = ""

    def as_json(self) -> JsonObject:
        """Return the entry."""
        entry = {"rule": self.rule, "message": self.message, "reason": self.reason}
        others = {"fieldPath": self.field_path, "messageExpression": self.message_expression}
        return entry | {key: text for key, text in others.items() if text}


def validations(*rules: Rule) -> JsonObject:
    """Return what a field's `Meta(extra_json_schema=...)` needs to carry these rules."""
    return {"x-kubernetes-validations": [rule.as_json() for rule in rules]}


def immutable(message: str) -> Rule:
    """Return the rule for a field that is always present (required, or with a default)."""
    return Rule("self == oldSelf", message)


def immutable_optional(name: str, message: str) -> Rule:
    """Return the rule for an optional field, to be put on its struct: it may neither appear, change nor disappear."""
    return Rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        message,
        field_path=f".{name}",
    )


IS_LABEL_KEY: Final = f"size(key) <= {LONGEST_LABEL_KEY} && key.matches('{LABEL_KEY_PATTERN}')"
_FORM: Final = (
    "(at most 63 letters, digits, '-', '_' and '.', with an optional DNS prefix and '/' before them;"
    f" {LONGEST_LABEL_KEY} in all)"
)


def label_keys(what: str, *reserved: str) -> Rule:
    """Return the rule for the keys of labels or annotations, which a schema cannot describe; `reserved` prefixes are refused."""
    own = "".join(f" && !key.startsWith('{prefix}')" for prefix in reserved)
    named = f", and those of {' and '.join(reserved)} are the operator's own" if reserved else ""
    told = f"{what} must be label names {_FORM}{named}"
    return Rule(
        f"self.all(key, {IS_LABEL_KEY}{own})",
        told,
        reason="FieldValueForbidden" if reserved else "FieldValueInvalid",
        message_expression=f'self.filter(key, !({IS_LABEL_KEY}{own}))[0] + ": {told}"',
    )


_IS_TIME_ZONE: Final = Rule(
    f"self in [{', '.join(repr(one) for one in TIME_ZONES)}]", f"timeZone is no time zone: {EXPECTED_ZONE}"
)


def meta_of_time_zone(description: str) -> Meta:
    """Return the Meta of a field `timeZone`."""
    return Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9_+/-]{1,64}$",
        description=description,
        extra_json_schema=validations(_IS_TIME_ZONE),
    )


# Keys of broker.conf that the operator sets, and what a user writes instead.
RESERVED_CONFIG_KEYS: Final = {
    "allAckInSyncStateSet": "use spec.durability",
    "asyncLearner": "use spec.replication.learners",
    "bindAddress": "the operator sets where a broker listens",
    "listenAddress": "the operator sets where a broker listens",
    "brokerClusterName": "use spec.brokerClusterName",
    "brokerHeartbeatInterval": "use spec.failover.heartbeatTimeoutMilliseconds, of which it is a sixth",
    "brokerIP1": "use spec.network.addressing",
    "brokerIP2": "use spec.network.addressing",
    "brokerId": "the controller assigns the broker id",
    "brokerName": "use spec.brokerName",
    "brokerRole": "the controller assigns the role",
    "controllerAddr": "the operator is the controller",
    "controllerHeartBeatTimeoutMills": "use spec.failover.heartbeatTimeoutMilliseconds",
    "enableControllerMode": "the operator is the controller",
    "enableDLegerCommitLog": "DLedger logs are not supported",
    "enableElectUncleanMaster": "use spec.failover.uncleanElection",
    "enableSlaveActingMaster": "the controller elects masters",
    "fetchControllerAddrByDnsLookup": "the operator is the controller",
    "fetchNamesrvAddrByAddressServer": "use spec.nameServers",
    "haListenPort": "use spec.network.haPort",
    "inSyncReplicas": "use spec.durability",
    "innerClientAuthenticationCredentials": "use spec.security.credentialsSecretRef",
    "listenPort": "use spec.network.listenPort",
    "minInSyncReplicas": "use spec.durability, and spec.replication.minInSyncReplicas",
    "namesrvAddr": "use spec.nameServers",
    "rocketmqHome": "the operator sets the paths",
    "startAcceptSendRequestTimeStamp": "a switchover sets it",
    "storePathBrokerIdentity": "the operator sets the paths",
    "storePathCommitLog": "the operator sets the paths",
    "storePathEpochFile": "the operator sets the paths",
    "storePathRootDir": "the operator sets the paths",
    "totalReplicas": "use spec.replicas",
}
# For a version: 5.1.0 and earlier have no persistent broker ids, so a restarted pod would be another broker; a broker of 5.1.2 does
# not start in controller mode (apache/rocketmq #6926), though one's own build of it may.
RUNS_WITH_A_CONTROLLER: Final = (
    "!self.matches('^0*([0-4][.]|5[.]0+[.]|5[.]0*1[.]0+([^0-9]|$))') && !self.matches('^0*5[.]0*1[.]0*2$')"
)
# For a version: 5.3.0 is the first with ACL 2.0.
HAS_ACL: Final = "!self.matches('^0*([0-4]|5[.]0*[0-2])[.]')"
# For config of a BrokerGroup, of a template and of an override.
CONFIG_RULES: Final = (
    # A key is a Java property name; a line break in it would smuggle in another key.
    Rule("self.all(key, key.matches('^[A-Za-z][A-Za-z0-9_.-]{0,127}$'))", "config keys must be Java property names"),
    *(
        Rule(f"!('{key}' in self)", f"config.{key} is set by the operator: {instead}", reason="FieldValueForbidden")
        for key, instead in RESERVED_CONFIG_KEYS.items()
    ),
)
