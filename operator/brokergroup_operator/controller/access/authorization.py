"""Which caller may send which request about which group. Pure.

A caller is known by the pod at its address, by the access key of its signature, or by the names in its certificate
(docs/concepts/security.md). The rules, most particular first:

* No caller configures the controller over the wire (1009): the two worst RocketMQ vulnerabilities came that way
 . Reading its configuration (1010) is opened by a setting.
* Replacing a living master (1002 with designateElect) and cleaning (1011) need an administrator.
* A broker speaks for itself. If the record keeps a member's id for a pod, only that pod may speak for the member; where no pod has
  the caller's address (NAT, host network), the group's own key or certificate counts. A member without a pod is spoken for by the
  group's pods, by the group's key or certificate, and by any caller if the group or the settings are open.
* Reading the master (1004, 1005, 1006) is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from brokergroup_operator.controller.directory.group_directory import SignaturePolicy
from brokergroup_operator.controller.directory.places import advertises
from controller_core.step import step
from rocketmq_remoting.address import host_of
from rocketmq_remoting.codes import RequestCode

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.security import SecuritySettings
    from controller_core.requests import RegisterBroker, Request


class Access(Enum):
    """What kind of right a request needs."""

    READ = "read"
    SPEAK = "speak as a broker"
    ADMINISTER = "administer"
    READ_CONFIGURATION = "read the configuration"
    CONFIGURE = "configure"


_ACCESS_OF_CODE = {
    RequestCode.CONTROLLER_GET_REPLICA_INFO: Access.READ,
    RequestCode.CONTROLLER_GET_METADATA_INFO: Access.READ,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: Access.READ,
    RequestCode.BROKER_HEARTBEAT: Access.SPEAK,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: Access.SPEAK,
    RequestCode.CONTROLLER_ELECT_MASTER: Access.SPEAK,
    RequestCode.CONTROLLER_REGISTER_BROKER: Access.SPEAK,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: Access.SPEAK,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: Access.SPEAK,
    RequestCode.CLEAN_BROKER_DATA: Access.ADMINISTER,
    RequestCode.GET_CONTROLLER_CONFIG: Access.READ_CONFIGURATION,
    RequestCode.UPDATE_CONTROLLER_CONFIG: Access.CONFIGURE,
}


class Caller(NamedTuple):
    """What is known of the caller.

    `access_key` is one whose signature was right; the certificate of `certificate_names` was verified.
    """

    host: str
    peer: Peer | None = None
    access_key: str | None = None
    certificate_names: tuple[str, ...] = ()
    admin: bool = False

    def __str__(self) -> str:
        if self.peer is not None:
            return f"pod {self.peer.namespace}/{self.peer.pod_name}"
        if self.access_key is not None:
            return f"{self.host}, signed as {self.access_key!r},"
        names = f", certificate of {self.certificate_names[0]!r}," if self.certificate_names else ", no pod of ours,"
        return self.host + names


class Subject(NamedTuple):
    """What a request is about, as its decoder read it.

    `pod` is the one for which the record keeps the broker's id; empty: none.
    """

    binding: GroupBinding | None
    broker_id: int | None = None
    pod: str = ""
    designate: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the request may go on; if not, why, in words that the caller may read."""

    allowed: bool
    reason: str = ""


ALLOWED = Verdict(allowed=True)


class NotPermittedError(Exception):
    """The request is refused with code 16; the message is its remark."""


def authorize(caller: Caller, code: int, subject: Subject, settings: SecuritySettings) -> Verdict:
    """Return whether this caller may send this request about this subject."""
    access = _ACCESS_OF_CODE.get(RequestCode(code)) if code in _KNOWN else None
    if access is None:
        return Verdict(allowed=False, reason=f"request type {code} is not the controller's")
    if access is Access.CONFIGURE:
        return Verdict(allowed=False, reason="the controller is configured by its own settings only")
    if access is Access.READ_CONFIGURATION:
        return ALLOWED if settings.configuration_readable else Verdict(allowed=False, reason="not opened for reading")
    if not _signed_enough(caller, code, subject.binding):
        name = subject.binding.broker_name if subject.binding is not None else ""
        return Verdict(allowed=False, reason=f"requests about {name} must be signed with its access key")
    if access is Access.ADMINISTER or subject.designate:
        return _administer(caller, settings)
    return ALLOWED if access is Access.READ else _speak(caller, subject, settings)


_KNOWN = frozenset(int(code) for code in _ACCESS_OF_CODE)


def _signed_enough(caller: Caller, code: int, binding: GroupBinding | None) -> bool:
    """Whether the request is signed as the group demands. 1006 is only read, and about many groups: it needs no signature."""
    if binding is None or binding.signature is not SignaturePolicy.REQUIRED:
        return True
    if code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
        return True
    return caller.admin or _has_key_of(caller, binding)


def _administer(caller: Caller, settings: SecuritySettings) -> Verdict:
    if caller.admin or settings.open_admin:
        return ALLOWED
    return Verdict(allowed=False, reason=f"{caller} is no administrator: an admin access key or certificate is needed")


def _speak(caller: Caller, subject: Subject, settings: SecuritySettings) -> Verdict:
    binding = subject.binding
    if binding is None:
        return ALLOWED  # there is nothing to speak for: the answer says so
    peer_group = caller.peer.group if caller.peer is not None else None
    if peer_group is not None and peer_group != binding.key:
        holds = f", which has brokerName {binding.broker_name!r}"
        return Verdict(allowed=False, reason=f"{caller} does not speak for group {binding.key}{holds}")
    if subject.pod:
        return _speak_for_pod(caller, subject, binding)
    if peer_group is not None or _has_identity_of(caller, binding) or binding.open or settings.brokers_without_pods:
        return ALLOWED
    return Verdict(allowed=False, reason=f"{caller} does not speak for group {binding.key}")


def _speak_for_pod(caller: Caller, subject: Subject, binding: GroupBinding) -> Verdict:
    own = (binding.key.namespace, subject.pod)
    peer = caller.peer
    is_itself = peer is not None and (peer.namespace, peer.pod_name) == own
    if is_itself or (peer is None and _has_identity_of(caller, binding)):
        return ALLOWED
    return Verdict(
        allowed=False, reason=f"{caller} does not speak for broker {subject.broker_id} of group {binding.key}"
    )


def _has_identity_of(caller: Caller, binding: GroupBinding) -> bool:
    return _has_key_of(caller, binding) or certificate_name_of(binding) in caller.certificate_names


def _has_key_of(caller: Caller, binding: GroupBinding) -> bool:
    return (
        caller.access_key is not None
        and binding.credentials is not None
        and caller.access_key == binding.credentials.access_key
    )


def certificate_name_of(binding: GroupBinding) -> str:
    """Return the name that a certificate of the group's brokers has."""
    return f"{binding.key.name}.{binding.key.namespace}"


def pod_of(group: Group, broker_id: int | None) -> str:
    """Return the pod for which the record keeps this member's id; empty if for none."""
    replica = group.record.replicas.get(broker_id) if group.record is not None and broker_id is not None else None
    return (replica.reserved_for or "") if replica is not None else ""


def refuse_elsewhere(caller: Caller, group: Group, wanted: RegisterBroker) -> None:
    """Raise if a pod registers an address that is not its own (safety rule 8). Behind NAT the address proves nothing."""
    address = wanted.broker_address
    if caller.peer is None or not address or not pod_of(group, wanted.broker_id):
        return
    if host_of(address) != caller.host and not advertises(group.binding, caller.peer.pod_name, address):
        raise NotPermittedError(f"{caller} is at {caller.host}, not at {address}")


def refuse_to_forget_pods(group: Group, wanted: Request) -> None:
    """Raise if a 1011 would forget a pod's member that is alive or holds a seat.

    Not even an administrator may: such members belong to their BrokerGroup, which would create them again.
    """
    record = group.record
    if record is None:
        return
    after = step(record, wanted, group.live(), group.binding.settings).record
    forgotten = [one for one in record.replicas if after is None or after.claimed_replica(one) is None]
    needed = sorted(
        one
        for one in forgotten
        if record.claimed_replica(one) is not None
        and pod_of(group, one)
        and (group.is_live(one) or one in record.seats)
    )
    if needed:
        raise NotPermittedError(
            f"brokers {needed} of group {group.key} are pods, alive or with a seat: their BrokerGroup rules them"
        )
