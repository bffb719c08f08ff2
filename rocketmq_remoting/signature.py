"""RocketMQ's ACL signature: who signs a request proves that he holds the secret key.

The sender adds ``AccessKey`` (and perhaps ``SecurityToken``) to the extFields and signs the *values* of all of them, in ascending
order of their names, followed by the raw body: Base64(HMAC-SHA1(secret key, content)). What that does not cover: the request code,
the flags, the remark, the names of the fields and where one value ends; and there is neither a nonce nor a time in it, so whoever
can read a signed request can send it again. It tells who speaks where nobody listens in; against listeners there is TLS.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketmq_remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An access key and its secret. The secret is in no text this object gives of itself."""

    access_key: str
    secret_key: str = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        for name, value in (("access_key", self.access_key), ("secret_key", self.secret_key)):
            if not value:
                raise ValueError(f"{name} is empty: expected the text that the brokers were given")


class SignatureState(Enum):
    """What a request's signature says of its sender."""

    UNSIGNED = "unsigned"
    VALID = "valid"
    UNKNOWN_KEY = "unknown access key"
    INVALID = "wrong signature"


def signature_of(ext_fields: Mapping[str, str], body: bytes | None, secret_key: str) -> str:
    """The ``Signature`` that belongs to these fields (an existing ``Signature`` among them is left out)."""
    values = (ext_fields[name] for name in sorted(ext_fields, key=_java_order) if name != SIGNATURE)
    content = "".join(values).encode("utf-8", "surrogatepass") + (body or b"")
    digest = hmac.new(secret_key.encode(), content, hashlib.sha1).digest()
    return base64.b64encode(digest).decode("ascii")


def sign(ext_fields: Mapping[str, str] | None, body: bytes | None, credentials: Credentials) -> dict[str, str]:
    """The extFields with ``AccessKey`` and ``Signature`` added; to be called when all other fields are in place."""
    signed = {name: value for name, value in (ext_fields or {}).items() if name != SIGNATURE}
    signed[ACCESS_KEY] = credentials.access_key
    signed[SIGNATURE] = signature_of(signed, body, credentials.secret_key)
    return signed


def sign_command(command: RemotingCommand, credentials: Credentials) -> RemotingCommand:
    """The same command, signed."""
    return msgspec.structs.replace(command, ext_fields=sign(command.ext_fields, command.body, credentials))


def verify(ext_fields: Mapping[str, str] | None, body: bytes | None, credentials: Credentials) -> SignatureState:
    """What the signature says, given the one key it could be made with. Takes the same time for any wrong signature."""
    given_key, given = (ext_fields or {}).get(ACCESS_KEY), (ext_fields or {}).get(SIGNATURE)
    if ext_fields is None or (given_key is None and given is None):
        return SignatureState.UNSIGNED
    if given_key is None or given is None:
        return SignatureState.INVALID
    if not hmac.compare_digest(given_key.encode("utf-8", "surrogatepass"), credentials.access_key.encode()):
        return SignatureState.UNKNOWN_KEY
    expected = signature_of(ext_fields, body, credentials.secret_key)
    right = hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())
    return SignatureState.VALID if right else SignatureState.INVALID


def _java_order(name: str) -> bytes:
    """Java compares strings by UTF-16 units, Python by code points: they differ above U+FFFF only."""
    return name.encode("utf-16-be", "surrogatepass")
