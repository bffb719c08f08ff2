"""The opaque token that continues a list where its last page ended."""

from __future__ import annotations

import base64
import binascii

import msgspec

from brokergroup_operator.sandbox.api_server.errors import bad_request


def next_page_token(last: tuple[str, str], revision: int) -> str:
    """Points behind `last` in a list that began at `revision`."""
    return base64.urlsafe_b64encode(msgspec.json.encode({"rv": revision, "start": list(last)})).decode().rstrip("=")


def read_page_token(token: str) -> tuple[tuple[str, str], int]:
    """The inverse; 400 for anything that this server never handed out."""
    try:
        decoded = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, name = decoded["start"]
        return (str(namespace), str(name)), int(decoded["rv"])
    except (binascii.Error, msgspec.DecodeError, KeyError, ValueError, TypeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error
