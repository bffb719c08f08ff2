"""Which caller may send which request about which group: the table is in docs/concepts/security.md.

A broker speaks for itself. If the record keeps a member's id for a pod, only that pod may speak for the member; where no pod has
the caller's address (NAT, host network), the group's own key or certificate counts. A member without a pod is spoken for by the
group's pods, by the group's key or certificate, and by any caller if the group or the settings are open.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from brokergroup_operator.api.brokergroup import Signature
from controller_core.step import step
from rocketmq_remoting.address import host_of
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.signature import ACCESS_KEY, SIGNATURE, SignatureState, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.controller.directory.pods import Peer
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.settings import SecuritySettings
    from brokergroup_operator.records.store import GroupKey
    from controller_core.requests import RegisterBroker, Request
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

# The requests that `ReplayGuard` lets pass once, and how many signatures it remembers.
GUARDED: Final = frozenset(
    {
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CLEAN_BROKER_DATA,
    }
)
MOST_REMEMBERED: Final = 50_000
# How long a name that no broker registers under keeps its place (`NewNames`).
KEPT_SECONDS = 3600.0

_READING = frozenset(
    {
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    }
)
_SPEAKING = frozenset(
    {
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
    }
)


class Caller(NamedTuple):
    """What is known of the caller: its access key only if its signature was right, names only of a verified certificate."""

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
    """What a request is about. `pod` is the one for which the record keeps the broker's id; empty: none."""

    binding: GroupBinding | None
    broker_id: int | None = None
    pod: str = ""
    designate: bool = False


class NotPermittedError(Exception):
    """The request is refused with code 16; the message is its remark."""


def authorize(caller: Caller, code: int, subject: Subject, settings: SecuritySettings) -> None:
    """Raise `NotPermittedError` if this caller may not send this request about this subject."""
    cleans = code == RequestCode.CLEAN_BROKER_DATA
    if code == RequestCode.UPDATE_CONTROLLER_CONFIG:
        raise NotPermittedError("the controller is configured by its own settings only")
    if code == RequestCode.GET_CONTROLLER_CONFIG:
        if not settings.configuration_readable:
            raise NotPermittedError("not opened for reading")
        return
    if not cleans and code not in _READING and code not in _SPEAKING:
        raise NotPermittedError(f"request type {code} is not the controller's")
    binding = subject.binding
    if binding is not None and binding.signature is Signature.REQUIRED:
        # 1006 is only read, and about many groups.
        needs_none = caller.admin or code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        if not needs_none and not _has_key_of(caller, binding):
            raise NotPermittedError(f"requests about {binding.broker_name} must be signed with its access key")
    if cleans or subject.designate:
        if not (caller.admin or settings.open_admin):
            raise NotPermittedError(f"{caller} is no administrator: an admin access key or certificate is needed")
    elif code in _SPEAKING and binding is not None:  # of an unknown group the answer says that it is unknown
        _check_speaks_for(binding, caller, subject, settings)


def _check_speaks_for(binding: GroupBinding, caller: Caller, subject: Subject, settings: SecuritySettings) -> None:
    peer = caller.peer
    is_of_group = peer is not None and peer.group == binding.key
    if peer is not None and peer.group is not None and not is_of_group:
        holds = f", which has brokerName {binding.broker_name!r}"
        raise NotPermittedError(f"{caller} does not speak for group {binding.key}{holds}")
    if subject.pod:
        is_itself = peer is not None and (peer.namespace, peer.pod_name) == (binding.key.namespace, subject.pod)
        if is_itself or (peer is None and _has_identity_of(caller, binding)):
            return
        raise NotPermittedError(f"{caller} does not speak for broker {subject.broker_id} of group {binding.key}")
    if not (is_of_group or _has_identity_of(caller, binding) or binding.open or settings.brokers_without_pods):
        raise NotPermittedError(f"{caller} does not speak for group {binding.key}")


def _has_identity_of(caller: Caller, binding: GroupBinding) -> bool:
    return _has_key_of(caller, binding) or f"{binding.key.name}.{binding.key.namespace}" in caller.certificate_names


def _has_key_of(caller: Caller, binding: GroupBinding) -> bool:
    return binding.credentials is not None and caller.access_key == binding.credentials.access_key


def pod_of(group: Group, broker_id: int | None) -> str:
    """Return the pod for which the record keeps this member's id; empty if for none."""
    replica = group.record.replicas.get(broker_id) if group.record is not None and broker_id is not None else None
    return (replica.reserved_for or "") if replica is not None else ""


def refuse_elsewhere(caller: Caller, group: Group, wanted: RegisterBroker) -> None:
    """Raise if a pod registers an address that is not its own (safety rule 8). Behind NAT the address proves nothing."""
    address = wanted.broker_address
    if caller.peer is None or not address or not pod_of(group, wanted.broker_id):
        return
    if host_of(address) != caller.host and not group.binding.advertises(caller.peer.pod_name, address):
        raise NotPermittedError(f"{caller} is at {caller.host}, not at {address}")


def refuse_to_forget_pods(group: Group, wanted: Request) -> None:
    """Raise if a 1011 would forget a pod's member that is alive or holds a seat: its BrokerGroup would create it again."""
    record = group.record
    if record is None:
        return
    after = step(record, wanted, group.live(), group.binding.settings).record
    needed = sorted(
        one
        for one in record.replicas
        if record.claimed_replica(one) is not None
        and (after is None or after.claimed_replica(one) is None)
        and pod_of(group, one)
        and (group.is_live(one) or one in record.seats)
    )
    if needed:
        raise NotPermittedError(
            f"brokers {needed} of group {group.key} are pods, alive or with a seat: their BrokerGroup rules them"
        )


def identify(
    request: RemotingCommand,
    connection: RemotingConnection,
    *,
    host: str,
    peer: Peer | None,
    binding: GroupBinding | None,
    settings: SecuritySettings,
    replays: ReplayGuard,
) -> Caller:
    """Return the caller at this host, by its pod, access key and certificate. A proven key makes the connection a known one.

    Raise `NotPermittedError` for a replay, and for a wrong signature, whatever else is known of the caller; where the group's
    signatures are Disabled only a replay is refused (`test_a_wrong_signature_is_refused_whatever_else_is_known`).
    """
    access_key, admin = _proven_key(request, binding, settings)
    if access_key is not None:
        ext_fields = request.ext_fields or {}
        if replays.is_replay(request.code, ext_fields, ext_fields[SIGNATURE]):
            raise NotPermittedError("this very request was made before: a signature counts once")
        connection.peer_is_known()
    return Caller(
        host=host,
        peer=peer,
        access_key=access_key,
        certificate_names=connection.certificate_names,
        admin=admin or not settings.admin_certificate_names.isdisjoint(connection.certificate_names),
    )


def _proven_key(
    request: RemotingCommand, binding: GroupBinding | None, settings: SecuritySettings
) -> tuple[str | None, bool]:
    """Return the access key whose signature is right, if any, and whether it is an administrator's."""
    ext_fields = request.ext_fields or {}
    given = ext_fields.get(ACCESS_KEY)
    strict = binding is None or binding.signature is not Signature.DISABLED
    if given is None:
        if SIGNATURE in ext_fields and strict:
            raise NotPermittedError("a Signature without an AccessKey")
        return None, False
    own = binding.credentials if binding is not None and strict else None
    admin = settings.admin_credentials.get(given) if settings.admin_credentials is not None else None
    for credentials, is_admin in ((own, False), (admin, True)):
        if credentials is None or credentials.access_key != given:
            continue
        if verify(ext_fields, request.body, credentials) is SignatureState.VALID:
            return given, is_admin
        if strict:
            raise NotPermittedError(f"the signature is wrong for access key {_short(given)}")
    # Without a key of the group another one says nothing: brokers with credentials sign all that they send.
    if own is not None:
        raise NotPermittedError(f"access key {_short(given)} is not this group's")
    return None, False


def _short(text: str) -> str:
    """Return a name that a caller chose, cut to fit a log line."""
    return repr(text if len(text) <= 64 else text[:64] + "...")


class ReplayGuard:
    """Remembers signatures of requests that change something: two requests of an honest sender differ in `invokeTime`.

    The memory is this process's own, so a replay to another plane passes: TLS closes that (docs/concepts/security.md).
    """

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def is_replay(self, code: int, ext_fields: Mapping[str, str], signature: str) -> bool:
        """Whether this request, whose signature is right, was seen before. Remember it if not."""
        if code not in GUARDED:
            return False
        if signature in self._seen:
            return True  # also without invokeTime: field names are not signed, so a replay may rename it
        if not ext_fields.get("invokeTime", "").isdecimal():
            return False
        self._seen[signature] = None
        if len(self._seen) > MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return False


class NewNames:
    """Limits how many names without a registered broker an address may begin; None: no limit.

    The first id of a name (1013) makes its record durable, and a record stays for good, because ids are not given twice. A place
    becomes free when a broker registers under the name, or after an hour: a closed connection costs its caller nothing.
    """

    def __init__(self, most_of_one_host: int | None) -> None:
        self._most_of_one_host = most_of_one_host
        # In the order of their beginning.
        self._begun: dict[GroupKey, tuple[str, float]] = {}
        self._count: Counter[str] = Counter()

    def begin(self, key: GroupKey, host: str, now_seconds: float) -> bool:
        """Take a place of this address's share for the name; return False if none is left."""
        if self._most_of_one_host is None or key in self._begun:
            return True
        while self._begun and now_seconds >= next(iter(self._begun.values()))[1] + KEPT_SECONDS:
            self.give_back(next(iter(self._begun)))
        if self._count[host] >= self._most_of_one_host:
            return False
        self._begun[key] = (host, now_seconds)
        self._count[host] += 1
        return True

    def give_back(self, key: GroupKey) -> None:
        """Free the name's place: a broker has registered under it, or nothing became durable."""
        if (begun := self._begun.pop(key, None)) is not None:
            host = begun[0]
            self._count[host] -= 1
            if not self._count[host]:
                del self._count[host]
