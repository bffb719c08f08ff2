"""The Secrets that `acl` of a RocketMQCluster needs: each user's password, and the key by which brokers and operator sign.

Secrets are not watched. They are read at most once a minute, and again with each new spec.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.credentials import (
    CredentialsError,
    credentials_in,
    password_in,
    secret_not_found,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokergroup_operator.api.acl_fields import AclSpec
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
    from brokergroup_operator.records.kubernetes import GroupObjects
    from brokergroup_operator.records.store import GroupKey

AGAIN_SECONDS: Final = 60.0

Read = dict[str, "JsonObject | CredentialsError | None"]
# The uid and generation of a cluster.
_Generation = tuple[str, int]


@dataclass(frozen=True)
class AclSecrets:
    """Passwords by user, and the access key of brokers and operator. `problems`: why one is missing; each names its Secret."""

    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    own: str | None = None
    problems: tuple[str, ...] = ()


class AclSecretReader:
    """Reads the Secrets of all clusters, and keeps what they had for a minute."""

    def __init__(self, objects: GroupObjects, clock: Callable[[], float]) -> None:
        self._objects = objects
        self._clock = clock
        # What was read, after the generation that it was read for and the time.
        self._known: dict[GroupKey, tuple[_Generation, float, AclSecrets]] = {}

    async def read(self, key: GroupKey, cluster: RocketMQCluster) -> AclSecrets:
        """Raises ApiError, but for a Secret that the operator may not read."""
        if (acl := cluster.spec.acl) is None:
            self.forget(key)
            return AclSecrets()
        of: _Generation = str(cluster.metadata.get("uid")), int(cluster.metadata.get("generation", 0))
        now_seconds = self._clock()
        if (known := self._known.get(key)) is not None:
            known_of, at_seconds, secrets = known
            if known_of == of and now_seconds - at_seconds < AGAIN_SECONDS:
                return secrets
        own_name = cluster.spec.broker_groups.template.security.credentials_secret_name or ""
        found = await self._all(key.namespace, {own_name, *(user.password_secret_ref.name for user in acl.users)})
        secrets = _judged(acl, own_name, found, key.namespace)
        self._known[key] = (of, now_seconds, secrets)
        return secrets

    def forget(self, key: GroupKey) -> None:
        self._known.pop(key, None)

    async def _all(self, namespace: str, names: set[str]) -> Read:
        ordered = sorted(names)
        found = await asyncio.gather(*(self._objects.secret(namespace, name) for name in ordered))
        return dict(zip(ordered, found, strict=True))


def _judged(acl: AclSpec, own_name: str, found: Read, namespace: str) -> AclSecrets:
    passwords, problems = {}, []
    own: str | None = None
    try:
        own = credentials_in(_had(found[own_name], secret_not_found(namespace, own_name))).access_key
    except CredentialsError as error:
        problems.append(f"credentialsSecretRef: {error}")
    for user in acl.users:
        source = user.password_secret_ref
        missing = secret_not_found(namespace, source.name, f"the key {source.key}")
        try:
            passwords[user.name] = password_in(_had(found[source.name], missing), source.key)
        except CredentialsError as error:
            problems.append(f"user {user.name}: {error}")
    return AclSecrets(passwords, own, tuple(problems))


def _had(secret: JsonObject | CredentialsError | None, missing: CredentialsError) -> JsonObject:
    """Return the Secret, or raise why it can't be had."""
    if isinstance(secret, CredentialsError):
        raise secret
    if secret is None:
        raise missing
    return secret
