"""The Secret of a group's credentials: its required content, and the reason if it is unusable.

A Java broker gets the values as JSON inside a properties file (``innerClientAuthenticationCredentials``). Characters that these
two forms would change are refused here. The reason names the remedy, never the value.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import Reason

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject


# Printable ASCII without `"`, `\` and `$`: JSON, Java properties and placeholders do not change the rest.
USABLE: Final = re.compile(r"[ !#%-\[\]-~]{1,512}")
_PAIR: Final = f"the keys {names.CREDENTIALS_ACCESS_KEY} and {names.CREDENTIALS_SECRET_KEY}"


class CredentialPair(NamedTuple):
    """The content of the Secret. Must not appear in any text."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        """Without the secret."""
        return "CredentialPair(…)"


class CredentialsError(Exception):
    """The Secret is missing or unusable; ``reason`` is for the condition, the message names the remedy."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def credentials_in(secret: JsonObject) -> CredentialPair:
    """Return the pair in a Secret. Raises CredentialsError."""
    return CredentialPair(_entry(secret, names.CREDENTIALS_ACCESS_KEY), _entry(secret, names.CREDENTIALS_SECRET_KEY))


def password_in(secret: JsonObject, key: str) -> str:
    """Return a user's password in a Secret. Raises CredentialsError."""
    return _entry(secret, key)


def secret_not_found(namespace: str, name: str, what: str = _PAIR) -> CredentialsError:
    """Return the error for a Secret that does not exist; `what` it should have."""
    return CredentialsError(Reason.SECRET_NOT_FOUND, f"Secret {namespace}/{name} does not exist: create it with {what}")


def secret_not_readable(namespace: str, name: str) -> CredentialsError:
    """Return the error for a Secret that the operator has no right to read."""
    return CredentialsError(
        Reason.SECRET_NOT_READABLE,
        f"The operator may not read Secret {namespace}/{name}: its role needs the verb get on it"
        " (the chart's value security.groupSecretNames)",
    )


def _entry(secret: JsonObject, key: str) -> str:
    metadata = secret.get("metadata") or {}
    what = f"Secret {metadata.get('namespace')}/{metadata.get('name')}"
    encoded = (secret.get("data") or {}).get(key)
    if not encoded:
        raise CredentialsError(Reason.SECRET_INCOMPLETE, f"{what} has no key {key}, expected a text under it")
    try:
        value = base64.b64decode(encoded, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        value = ""
    if not USABLE.fullmatch(value):
        raise CredentialsError(
            Reason.SECRET_INVALID,
            f"{what}: {key} is not usable, expected 1 to 512 printable ASCII characters without"
            " double quotes, backslashes, dollar signs and line breaks",
        )
    return value
