"""RocketMQ's ACL signature: it proves that the sender of a request holds the secret key.

The sender adds ``AccessKey`` (and perhaps ``SecurityToken``) to the extFields and signs the *values* of all of them, in ascending
order of their names, followed by the raw body: Base64(HMAC-SHA1(secret key, content)). Not covered: the request code, the flags,
the remark, the names of the fields and the boundaries of the values. There is no nonce and no time, so a signed request can be
replayed by any process that can read it; TLS protects against that.
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
    """An access key and its secret. The secret is left out of ``repr``."""

    access_key: str
    secret_key: str = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        for name, value in (("access_key", self.access_key), ("secret_key", self.secret_key)):
            if not value:
                raise ValueError(f"{name} is empty: expected the text that the brokers were given")


class SignatureState(Enum):
    """The result of checking a request's signature."""

    UNSIGNED = "unsigned"
    VALID = "valid"
    UNKNOWN_KEY = "unknown access key"
    INVALID = "wrong signature"


def signature_of(ext_fields: Mapping[str, str], body: bytes | None, secret_key: str) -> str:
    """Return the ``Signature`` of these fields, without an existing ``Signature`` among them."""
    values = (ext_fields[name] for name in sorted(ext_fields, key=_java_order) if name != SIGNATURE)
    content = "".join(values).encode("utf-8", "surrogatepass") + (body or b"")
    digest = hmac.new(secret_key.encode(), content, hashlib.sha1).digest()
    return base64.b64encode(digest).decode("ascii")


def sign(ext_fields: Mapping[str, str] | None, body: bytes | None, credentials: Credentials) -> dict[str, str]:
    """Return the extFields with ``AccessKey`` and ``Signature``. All other fields must be present already."""
    signed = {name: value for name, value in (ext_fields or {}).items() if name != SIGNATURE}
    signed[ACCESS_KEY] = credentials.access_key
    signed[SIGNATURE] = signature_of(signed, body, credentials.secret_key)
    return signed


def sign_command(command: RemotingCommand, credentials: Credentials) -> RemotingCommand:
    """Return a signed copy of the command."""
    return msgspec.structs.replace(command, ext_fields=sign(command.ext_fields, command.body, credentials))


def verify(ext_fields: Mapping[str, str] | None, body: bytes | None, credentials: Credentials) -> SignatureState:
    """Check a signature against the only valid key, in the same time for any wrong signature."""
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
    """Return a sort key as Java compares strings: by UTF-16 units, which differ from code points above U+FFFF."""
    return name.encode("utf-16-be", "surrogatepass")
