"""One remoting command: what travels in a frame, whichever header encoding carries it.

A request and its answer have the same fields; bit 0 of ``flag`` marks an answer, bit 1 a one-way request. ``opaque`` matches the
answer to the request. ``ext_fields`` is the typed header of the request or response code in string form; the ``*_protocol``
modules give it types. ``None`` and an empty mapping differ on the wire in the JSON form, so they differ here.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - hypothesis builds commands from their type hints
from enum import IntEnum
from typing import Final

import msgspec

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

MQ_VERSION_5_0_0: Final = 413
"""Ordinal of 5.0.0 in Java's MQVersion; every minor release adds 20, every patch 2."""
MQ_VERSION_5_5_0: Final = 513


class SerializeType(IntEnum):
    """How the header of a frame is written: top byte of the frame's second word."""

    JSON = 0
    ROCKETMQ = 1


class LanguageCode(IntEnum):
    """The sender's language: a name in the JSON header, a number in the binary header."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class RemotingCommand(msgspec.Struct, frozen=True, gc=False):
    """A request or an answer. ``language`` is ``None`` if the header has none or an unknown one.

    Every send makes two of these. A Struct costs an eighteenth of a frozen dataclass. ``gc=False`` is safe: no field refers back.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    language: LanguageCode | None = LanguageCode.PYTHON
    version: int = 0
    remark: str | None = None
    ext_fields: Mapping[str, str] | None = None
    body: bytes | None = None
    serialize_type: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """Whether this answers a request (flag bit 0)."""
        return bool(self.flag & RESPONSE_FLAG)

    def with_opaque(self, opaque: int) -> RemotingCommand:
        """Return a copy with this opaque."""
        return msgspec.structs.replace(self, opaque=opaque)

    @property
    def is_oneway(self) -> bool:
        """Whether this is a request without an answer (flag bit 1)."""
        return bool(self.flag & ONEWAY_FLAG)

    def answer(
        self,
        code: int,
        *,
        remark: str | None = None,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> RemotingCommand:
        """Return the answer to this request: same opaque, response flag, the request's header encoding.

        Java uses its own configured encoding instead; every decoder takes both.
        """
        return RemotingCommand(
            code=code,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            remark=remark,
            ext_fields=ext_fields,
            body=body,
            serialize_type=self.serialize_type,
        )


def request(
    code: int,
    *,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes | None = None,
    oneway: bool = False,
    version: int = 0,
    serialize_type: SerializeType = SerializeType.JSON,
) -> RemotingCommand:
    """Return a request; the client sets ``opaque``. NameServers require a ``version`` of at least 401."""
    return RemotingCommand(
        code=code,
        flag=ONEWAY_FLAG if oneway else 0,
        version=version,
        ext_fields=ext_fields,
        body=body,
        serialize_type=serialize_type,
    )
