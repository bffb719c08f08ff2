"""The steps of a differential sequence, in the language of tests/core/traces: `1013 id=1 check=10.0.0.1:10911;1`.

This language has several groups (`name=bn2`) and more invalid input: `name=null` and
an absent key omit the field, any other text is sent as it is (`id=abc`), `body=none|garbage|noset|null|empty|strings` replaces
the body, `as=rocketmq` writes the header in the binary form. `heartbeat` takes `conn=b` for another connection and `oneway=true`;
`close id=1` ends the connection that carries its heartbeats, and kills the broker behind it.

A generated step may have a relative epoch: `epoch=@` is the group's epoch when the step is sent, `epoch=@-1` one less. So a
sequence keeps its meaning when the shrinker removes steps. `resolve` fills in the numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RELATIVE = re.compile(r"@([+-]\d+)?")
DEFAULT_NAME = "bn"
DEFAULT_CLUSTER = "cl"
ABSENT = "null"


@dataclass(frozen=True)
class Step:
    """One command: a verb and its arguments."""

    verb: str
    arguments: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, verb: str | int, **arguments: object) -> Step:
        """Return a step from Python values; None omits an argument."""
        return cls(str(verb), tuple((key, _text(value)) for key, value in arguments.items() if value is not None))

    @classmethod
    def parse(cls, command: str) -> Step:
        """Read a command line."""
        verb, *words = command.split()
        return cls(verb, tuple((key, value) for key, _, value in (word.partition("=") for word in words)))

    def get(self, key: str) -> str | None:
        """Return one argument's text, None if it is missing."""
        return dict(self.arguments).get(key)

    def number(self, key: str) -> int | None:
        """Return one argument parsed like Java's Long; None if it is missing or not a number."""
        text = self.get(key)
        if text is None or re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII) is None:
            return None
        value = int(text)
        return value if -(2**63) <= value < 2**63 else None

    @property
    def name(self) -> str | None:
        """Return the group's name; None if the field is omitted."""
        name = self.get("name") if self.get("fields") != "none" else ABSENT
        return DEFAULT_NAME if name is None else None if name == ABSENT else name

    @property
    def cluster(self) -> str | None:
        """Return the cluster's name; None if the field is omitted."""
        cluster = self.get("cluster")
        return DEFAULT_CLUSTER if cluster is None else None if cluster == ABSENT else cluster

    @property
    def binary(self) -> bool:
        """Whether the header is written in the binary form."""
        return self.get("as") == "rocketmq"

    @property
    def designates(self) -> bool:
        """Whether a 1002 comes from an administrator, parsed like Java's booleans."""
        return (self.get("designate") or "").lower() == "true"

    def members(self) -> tuple[int, ...]:
        """The ids of `set=`, as given."""
        return tuple(int(part) for part in (self.get("set") or "").split(",") if part)

    def without(self, *keys: str) -> Step:
        """Return the step without these arguments."""
        return Step(self.verb, tuple((key, value) for key, value in self.arguments if key not in keys))

    def resolve(self, present: Mapping[str, int]) -> Step:
        """Return the step with numbers for epochs relative to `present`."""
        return Step(self.verb, tuple((key, _resolved(value, present.get(key, 0))) for key, value in self.arguments))

    def __str__(self) -> str:
        return " ".join([self.verb, *(f"{key}={value}" for key, value in self.arguments)])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (set, frozenset, list, tuple)):
        return ",".join(str(one) for one in value)
    return str(value)


def _resolved(text: str, present: int) -> str:
    match = RELATIVE.fullmatch(text)
    return text if match is None else str(present + int(match[1] or 0))
