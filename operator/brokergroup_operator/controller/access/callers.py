"""Who sends a request: its signature, certificate and pod; and what is limited by caller: replays, new names, lines of the log.

A wrong signature is refused whatever else is known of the caller, unless the group's policy is Off
(`test_a_wrong_signature_is_refused_whatever_else_is_known`). An unknown key is wrong if the group has a key of its own; else it
says nothing, because brokers with credentials sign all that they send.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog

from brokergroup_operator.controller.access.authorization import Caller, NotPermittedError
from brokergroup_operator.controller.directory.group_directory import SignaturePolicy
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.signature import ACCESS_KEY, SIGNATURE, SignatureState, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer
    from brokergroup_operator.controller.security import SecuritySettings
    from brokergroup_operator.records.store import GroupKey
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

_LONGEST_NAME = 64
INVOKE_TIME: Final = "invokeTime"
GUARDED: Final = frozenset(
    {
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CLEAN_BROKER_DATA,
    }
)
MOST_REMEMBERED: Final = 50_000
KEPT_SECONDS = 3600.0
WINDOW_SECONDS = 60.0
LINES_PER_WINDOW = 10

log = structlog.get_logger(__name__)


def identify(
    request: RemotingCommand,
    connection: RemotingConnection,
    *,
    peer: Peer | None,
    binding: GroupBinding | None,
    settings: SecuritySettings,
    replays: ReplayGuard,
) -> Caller:
    """Return the caller.

    Raise `NotPermittedError` for a wrong signature or a replay. A proven key makes the connection a known one.
    """
    access_key, admin = _proven_key(request, binding, settings)
    if access_key is not None:
        ext_fields = request.ext_fields or {}
        if replays.is_replay(request.code, ext_fields, ext_fields[SIGNATURE]):
            raise NotPermittedError("this very request was made before: a signature counts once")
        connection.peer_is_known()
    return Caller(
        host=connection.peer_host,
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
    strict = binding is None or binding.signature is not SignaturePolicy.OFF
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
    if own is not None:
        raise NotPermittedError(f"access key {_short(given)} is not this group's")
    return None, False


def _short(text: str) -> str:
    """Return a name that a caller chose, cut to fit a log line."""
    return repr(text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "...")


class ReplayGuard:
    """Remembers signatures of requests that change something, and refuses the same one again.

    RocketMQ signs no nonce, but such requests carry `invokeTime` in milliseconds, so an honest sender never repeats a
    signature. The memory is bounded and this process's own, so a replay to another plane passes: TLS closes that
    (docs/concepts/security.md).
    """

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def is_replay(self, code: int, ext_fields: Mapping[str, str], signature: str) -> bool:
        """Whether this request, whose signature is right, was seen before. Remember it if not."""
        if code not in GUARDED:
            return False
        if signature in self._seen:
            return True  # also without invokeTime: field names are not signed, so a replay may rename it
        if not ext_fields.get(INVOKE_TIME, "").isdecimal():
            return False
        self._seen[signature] = None
        if len(self._seen) > MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return False


class NewNames:
    """Limits how many names an address may begin; None: no limit.

    The first id of a name (1013) makes its record durable, and a record stays for good, because ids are not given twice. So each
    address has a share of records without a registered broker. A place in the share becomes free when a broker registers under the
    name, or after an hour; not when a connection closes, because opening another one costs nothing.
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
        self._let_go_of_old(now_seconds)
        if self._count[host] >= self._most_of_one_host:
            return False
        self._begun[key] = (host, now_seconds)
        self._count[host] += 1
        return True

    def give_back(self, key: GroupKey) -> None:
        """Free the name's place: a broker has registered under it, or nothing became durable."""
        host, _ = self._begun.pop(key, ("", 0.0))
        if self._count[host] > 1:
            self._count[host] -= 1
        else:
            del self._count[host]

    def _let_go_of_old(self, now_seconds: float) -> None:
        while self._begun:
            key, (_, begun_seconds) = next(iter(self._begun.items()))
            if now_seconds < begun_seconds + KEPT_SECONDS:
                return
            self.give_back(key)


class RefusalLog:
    """Logs refused requests: at most 10 lines a minute, then one line with how many were left out."""

    def __init__(self) -> None:
        self._window_ends_seconds = 0.0
        self._told = 0
        self._left_out = 0

    def note(self, request: RemotingCommand, connection: RemotingConnection, reason: str) -> None:
        """Log one refusal, if this minute's lines are not used up."""
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds >= self._window_ends_seconds:
            if self._left_out:
                log.warning("more requests were refused", left_out=self._left_out)
            self._window_ends_seconds = now_seconds + WINDOW_SECONDS
            self._told = self._left_out = 0
        if self._told >= LINES_PER_WINDOW:
            self._left_out += 1
            return
        self._told += 1
        log.warning("request refused", code=request.code, peer=connection.peer_host, reason=reason)
