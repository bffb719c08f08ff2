"""Keys of broker.conf with a meaning for the operator: those a running broker accepts, those that carry a promise, those it
watches.

Every permitted caller can change a running broker by request 25 (`mqadmin updateBrokerConfig`), so a rendered value proves nothing
about the value in use. Java keys are from RocketMQ 5.5.0, Python ones from ``rocketmq_replica.controller.operator_requests``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.secret_names import SECRET_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.api.brokergroup import BrokerGroupSpec


NAME_SERVERS: Final = "namesrvAddr"
CONTROLLERS: Final = "controllerAddr"
MINIMUM: Final = "minInSyncReplicas"
ROLE: Final = "brokerRole"
# A Java broker refuses producers' sends until its clock shows this time (milliseconds since 1970).
ACCEPTS_SENDS_FROM: Final = "startAcceptSendRequestTimeStamp"
# 4: a broker lets its clients read, 2: send. 6 is the default.
PERMISSION: Final = "brokerPermission"
# Values in broker.conf are initial ones: the controller assigns the final ones to each broker.
ASSIGNED_KEYS: Final = frozenset({"brokerId", ROLE})
# More than any group's members: a broker with this minimum acknowledges nothing.
QUIET_MINIMUM: Final = "99"
_BOTH: Final = frozenset(
    {
        "allAckInSyncStateSet",
        PERMISSION,
        CONTROLLERS,
        "fileReservedTime",
        "haMaxTimeSlaveNotCatchup",
        "inSyncReplicas",
        MINIMUM,
        NAME_SERVERS,
    }
)
# Keys that a running broker reads each time it uses them: they change by request 25, without a restart. A Java broker reads
# controllerAddr every two minutes.
HOT_KEYS: Final = {
    Implementation.PYTHON: _BOTH | {"authenticationEnabled"},
    Implementation.JAVA: _BOTH
    | {
        "autoCreateSubscriptionGroup",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "haHousekeepingInterval",
        "haSendHeartbeatInterval",
        "transactionCheckMax",
        "transactionTimeOut",
        "waitTimeMillsInSendQueue",
    },
}
# Keys that SEND_OK depends on: another value acknowledges a message on fewer disks than spec.durability promises, or on none
# (flushDiskType). Without the controller mode, or as ASYNC_MASTER, a Java broker waits for no slave.
DURABILITY_KEYS: Final = frozenset(
    {
        "allAckInSyncStateSet",
        "enableAutoInSyncReplicas",
        "enableControllerMode",
        "flushDiskType",
        "inSyncReplicas",
        MINIMUM,
        ROLE,
    }
)
# The brokers' own defaults of watched keys that the operator does not set.
DEFAULTS: Final = {
    Implementation.PYTHON: {
        "brokerElectionPriority": "2147483647",
        PERMISSION: "6",
        "enableAutoInSyncReplicas": "false",
        "slaveTimeout": "3000",
    },
    Implementation.JAVA: {
        "brokerElectionPriority": "2147483647",
        PERMISSION: "6",
        "enableAutoInSyncReplicas": "false",
        "flushDiskType": "ASYNC_FLUSH",
        "slaveTimeout": "3000",
    },
}
# Rendered for the start; a Java broker also accepts them by request 25. (Paths, ports and addresses have no effect there.)
_WRITTEN_AT_THE_START: Final = frozenset(
    {
        "brokerClusterName",
        "brokerHeartbeatInterval",
        "brokerName",
        "controllerHeartBeatTimeoutMills",
    }
)


# Holds a password although its name does not show it.
_SECRET_ALL_THE_SAME: Final = frozenset({"initAuthenticationUser"})


def watched_keys(spec: BrokerGroupSpec) -> frozenset[str]:
    """Return the keys to read back from this group's brokers, without those that hold secrets."""
    return _watched_of(spec.implementation) | _without_secrets(spec.config)


@cache
def _watched_of(implementation: Implementation) -> frozenset[str]:
    keys = HOT_KEYS[implementation] | DURABILITY_KEYS | DEFAULTS[implementation].keys() | _WRITTEN_AT_THE_START
    return _without_secrets(keys)


def _without_secrets(keys: Iterable[str]) -> frozenset[str]:
    return frozenset(key for key in keys if key not in _SECRET_ALL_THE_SAME and SECRET_NAME.search(key) is None)


def same_value(one: str, other: str) -> bool:
    """Whether both values are equal to a broker: 4 and 04, TRUE and true, a list in another order."""
    return one == other or _meaning(one) == _meaning(other)


def _meaning(text: str) -> list[str]:
    return sorted(_plain(part.strip()) for part in text.split(";"))


def _plain(part: str) -> str:
    if part.isascii() and part.isdecimal():
        return part.lstrip("0") or "0"
    return part.lower() if part.lower() in {"true", "false"} else part


def shown(value: str) -> str:
    """Return a broker's value as short printable text, for messages."""
    plain = "".join(char if char.isprintable() else " " for char in value)
    return plain if len(plain) <= 64 else f"{plain[:61]}..."
