"""What every JSON body has in common: a frozen struct, camel case on the wire, unknown members ignored."""

from __future__ import annotations

from typing import Self

import msgspec

from rocketmq_remoting import java_json
from rocketmq_remoting.errors import BodyError


class JsonPart(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a body. Members with a default may be missing, as old and new Java versions know different ones."""


class JsonBody(JsonPart, frozen=True):
    """A whole body."""

    @classmethod
    def decode(cls, body: bytes | None) -> Self:
        """The body of a command. BodyError names what is missing or wrong."""
        if body is None:
            raise BodyError(f"no body, expected the JSON of {cls.__name__}")
        decoded: Self = java_json.loads_as(body, cls)
        return decoded

    def encode(self) -> bytes:
        """The JSON of this body."""
        return java_json.dumps(self)
