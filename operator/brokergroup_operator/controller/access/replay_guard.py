"""The same signed request twice: the second time somebody else sends it.

RocketMQ's signature covers no nonce, but the requests that change something carry ``invokeTime`` in milliseconds among the signed
fields, so an honest sender never makes the same signature again. What this process has seen is remembered for as long as it fits;
another operator pod, or the next process, has not seen it. It narrows the hole that
``docs/concepts/security.md`` tells of; TLS closes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketmq_remoting.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class ReplayGuard:
    """Remembers signatures, the oldest forgotten first."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def is_replay(self, code: int, ext_fields: Mapping[str, str], signature: str) -> bool:
        """Whether this rightly signed request was seen before; remembers it if not."""
        if code not in GUARDED:
            return False
        if signature in self._seen:
            return (
                True  # also without the time's field: its name is not signed, so whoever sends it again may rename it
            )
        if not ext_fields.get(INVOKE_TIME, "").isdecimal():
            return False
        self._seen[signature] = None
        if len(self._seen) > MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return False
