"""Who may ask what: a caller, a request and a group in, a verdict out. Pure.

Three ways to be known (``docs/concepts/security.md``): the pod at the address one speaks from, the access key one signs with,
the names in the certificate one showed. The rules, most particular first:

* Configuring the controller over the wire (1009) is nobody's right: the two worst RocketMQ vulnerabilities came that way.
  Reading its configuration (1010) is opened by a setting.
* Replacing a living master (1002 with designateElect) and making the controller forget brokers (1011) is an administrator's.
* A broker speaks for itself. A member whose id is kept for a pod is that pod, whatever else may be signed; only where no pod
  has the address (NAT, host network) does the group's own key or certificate count. A member without a pod is spoken for by the
  group's pods, by whoever has the group's key or certificate, and by anybody where the group or the settings are open.
* Reading who is master (1004, 1005, 1006) is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from brokergroup_operator.controller.directory.group_directory import SignaturePolicy
from rocketmq_remoting.codes import RequestCode

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer
    from brokergroup_operator.controller.security_settings import SecuritySettings


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
    """What is known of who asks. ``access_key`` is one whose signature was right, ``certificate_names`` were checked."""

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
    """Whom a request is about, as its own decoder read it. ``pod`` is the one that the broker's id is kept for, if any."""

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
    """Whether this caller may ask this of this group."""
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
    """A group may want every request about itself signed; 1006 is about many groups and only read."""
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
    """The name that a certificate of the group's brokers bears."""
    return f"{binding.key.name}.{binding.key.namespace}"
