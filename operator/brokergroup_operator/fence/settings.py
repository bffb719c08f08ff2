"""The fence's settings, all from its environment, which the operator renders (reconcile/render/pods.py)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.address import EXPECTED, Address, heard_address, ip_of_family, join_address

if TYPE_CHECKING:
    from collections.abc import Mapping

# UDP port of the fence: the broker's port plus this (broker, HA, fence).
FENCE_PORT_OFFSET: Final = 2
CONTAINER_VARIABLE: Final = "BROKERGROUP_CONTAINER"
POD_VARIABLE: Final = "POD_UID"
# On the broker and what it starts, and on nothing else that runs in its container.
PROCESS_VARIABLE: Final = "BROKERGROUP_PROCESS"
STOP_ORDER_VARIABLE: Final = "STOP_ORDER_FILE"
GRACE_VARIABLE: Final = "STOP_GRACE_SECONDS"
# Where a pod of an earlier release does not say it: the default of `terminationGracePeriodSeconds`.
STOP_SECONDS: Final = 60.0
LONGEST_STOP_SECONDS: Final = 3600
BROKER_CONTAINER: Final = "broker"
ROLE_FILE: Final = "role"
CONTROLLERS_FILE: Final = "controllers"


class FenceSettingsError(ValueError):
    """The environment is not as the operator renders it; the message names the variable, its value and what was expected."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS towards one peer; without an authority every certificate is trusted, as RocketMQ does by default."""

    authority: Path | None = None
    # Our certificate for a peer that requests one, and its key; both or neither.
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceSettings:
    """Settings of one pod's fence."""

    pod_uid: str
    broker_name: str
    # The broker's address in the record, and where it listens in the pod.
    broker_address: Address
    local_address: Address
    # Those to ask before one of them has listed all (`watchman.CONTROLLERS`).
    controllers: tuple[Address, ...]
    isolation_seconds: float
    fence_timeout_seconds: float
    heartbeat_timeout_seconds: float
    heartbeat_interval_seconds: float
    run_dir: Path | None
    # DNS name of the group's pods, if their fences are not reachable at the brokers' known addresses.
    pods: str = ""
    # The group's fence key; None: this fence accepts no order.
    key_file: Path | None = None
    # Not empty while the broker is to be stopped. None: a pod of an earlier release, which has no such file.
    stop_order_file: Path | None = None
    # From SIGTERM by that order to SIGKILL: what the pod's deletion would give the broker.
    stop_seconds: float = STOP_SECONDS
    # None: plain frames.
    controller_tls: TlsSettings | None = None
    broker_tls: TlsSettings | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> FenceSettings:
        """Raises FenceSettingsError."""
        broker = own_address(environment, "FENCE_BROKER_ADDRESS")
        texts = [text.strip() for text in _required(environment, "FENCE_CONTROLLERS").split(";") if text.strip()]
        run_dir = environment.get("RUN_DIR")
        return cls(
            pod_uid=pod_uid(environment),
            broker_name=_required(environment, "FENCE_BROKER_NAME"),
            broker_address=broker,
            local_address=own_address(environment, "FENCE_LOCAL_ADDRESS", otherwise=broker),
            controllers=tuple(_address("FENCE_CONTROLLERS", text) for text in texts),
            isolation_seconds=_milliseconds(environment, "FENCE_ISOLATION_MILLISECONDS") / 1000,
            fence_timeout_seconds=_milliseconds(environment, "FENCE_TIMEOUT_MILLISECONDS") / 1000,
            heartbeat_timeout_seconds=_milliseconds(environment, "FENCE_HEARTBEAT_TIMEOUT_MILLISECONDS") / 1000,
            heartbeat_interval_seconds=_milliseconds(environment, "FENCE_HEARTBEAT_INTERVAL_MILLISECONDS") / 1000,
            run_dir=Path(run_dir) if run_dir else None,
            pods=environment.get("FENCE_PODS", ""),
            key_file=key_file(environment),
            stop_order_file=stop_order_file(environment),
            stop_seconds=stop_seconds(environment),
            controller_tls=_tls(environment, "FENCE_CONTROLLER"),
            # The broker is in our own pod, so its address proves its identity.
            broker_tls=_tls(environment, "FENCE_BROKER"),
        )


def own_address(environment: Mapping[str, str], name: str, *, otherwise: Address | None = None) -> Address:
    """Return a variable's address. If its host lists all of the pod's, POD_IP_FAMILY selects one. Raises FenceSettingsError."""
    if otherwise is not None and not environment.get(name):
        return otherwise
    hosts, _, port = _required(environment, name).rpartition(":")
    return _address(name, join_address(ip_of_family(hosts, environment.get("POD_IP_FAMILY", "")), port))


def fence_of(broker: Address) -> Address:
    """Return the address of the fence beside the broker at this address."""
    return Address(broker.host, broker.port + FENCE_PORT_OFFSET)


def pod_uid(environment: Mapping[str, str]) -> str:
    """Return the pod's uid, which marks its processes. Raises FenceSettingsError."""
    return _required(environment, POD_VARIABLE)


def key_file(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the group's fence key; None if the operator gives no orders."""
    text = environment.get("FENCE_KEY_FILE")
    return Path(text) if text else None


def stop_order_file(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the file that is not empty while the broker is to be stopped."""
    text = environment.get(STOP_ORDER_VARIABLE)
    return Path(text) if text else None


def stop_seconds(environment: Mapping[str, str]) -> float:
    """Return how long a broker that is stopped by order has to end. Raises FenceSettingsError."""
    text = environment.get(GRACE_VARIABLE)
    if not text:
        return STOP_SECONDS
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= LONGEST_STOP_SECONDS:
        raise FenceSettingsError(
            f"{GRACE_VARIABLE} is {text!r}, expected a number of seconds from 1 to {LONGEST_STOP_SECONDS}"
        )
    return float(text)


def _address(name: str, text: str) -> Address:
    found = heard_address(text)
    if found is None:
        raise FenceSettingsError(f"{name} is {text!r}, expected {EXPECTED}")
    return found


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise FenceSettingsError(f"{name} is not set")
    return value


def _tls(environment: Mapping[str, str], side: str) -> TlsSettings | None:
    text = environment.get(f"{side}_TLS", "false")
    if text not in ("true", "false"):
        raise FenceSettingsError(f"{side}_TLS is {text!r}, expected true or false")
    names = (f"{side}_CA", f"{side}_CERTIFICATE", f"{side}_KEY")
    authority, certificate, key = (Path(path) if (path := environment.get(name)) else None for name in names)
    if (certificate is None) != (key is None):
        raise FenceSettingsError(f"{names[1]} is {certificate} and {names[2]} is {key}, expected both files or neither")
    return TlsSettings(authority, certificate, key) if text == "true" else None


def _milliseconds(environment: Mapping[str, str], name: str) -> int:
    text = _required(environment, name)
    if not text.isdigit() or not 100 <= int(text) <= 120_000:
        raise FenceSettingsError(f"{name} is {text!r}, expected a number of milliseconds from 100 to 120000")
    return int(text)
