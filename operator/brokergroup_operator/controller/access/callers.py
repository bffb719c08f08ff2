"""Finding out who asks: the signature and the certificate of a request, judged; the pod behind an address is brought along.

A signature that is wrong is worse than none: it is refused whatever else is known, unless the group's policy is Off. A key that
nobody here knows says nothing where the group has no key of its own to compare with (brokers sign everything they send once
they were given credentials), and is wrong where it has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.controller.access.authorization import Caller, NotPermittedError
from brokergroup_operator.controller.directory.group_directory import SignaturePolicy
from rocketmq_remoting.signature import ACCESS_KEY, SIGNATURE, SignatureState, verify

if TYPE_CHECKING:
    from brokergroup_operator.controller.access.replay_guard import ReplayGuard
    from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer
    from brokergroup_operator.controller.security_settings import SecuritySettings
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

_LONGEST_NAME = 64


def identify(
    request: RemotingCommand,
    connection: RemotingConnection,
    *,
    peer: Peer | None,
    binding: GroupBinding | None,
    settings: SecuritySettings,
    replays: ReplayGuard,
) -> Caller:
    """The caller. NotPermittedError when what he shows is wrong. One whom a key proves is a known peer from then on."""
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
    """The access key that the request is rightly signed with, and whether it is an administrator's."""
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
    """A name that a stranger chose, fit for a log line."""
    return repr(text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "...")
