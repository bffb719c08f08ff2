"""Java properties as dataclasses: the parsers of the values, and errors that name key, value and expected form.

``${NAME}`` is replaced from the environment; Java needs an init step that renders pod addresses into the file. Unknown keys are
logged in one line. A secret value is in no message.
"""

from __future__ import annotations

import logging
import re
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rocketmq_remoting.address import EXPECTED, Address, AddressError, is_ip, plain_host
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import decode_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import Field


logger = logging.getLogger(__name__)

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


MOST_DELAY_LEVELS = 64
_SECONDS_OF = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class ConfigurationError(ValueError):
    """A key of a configuration file has an unusable value."""


def read_as(key: str, parse: Callable[[str], Any], *, secret: bool = False) -> dict[str, Any]:
    """Return the metadata of a field that is read from the property ``key``. A secret value is in no message and no answer."""
    return {"key": key, "parse": parse, "secret": secret}


def prop(key: str, parse: Callable[[str], Any], *, default: Any) -> Any:
    """Return a dataclass field that is read from the property ``key``."""
    return field(default=default, metadata=read_as(key, parse))


def text(value: str) -> str:
    """Any text that is not empty."""
    if not value:
        raise ValueError("expected a text")
    return value


def name(value: str) -> str:
    """A name that identity files can contain."""
    if not value or "#" in value:
        raise ValueError("expected a name without '#'")
    return value


def whole(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a parser of whole numbers within these bounds."""

    def parse(value: str) -> int:
        expected = f"expected a whole number from {minimum} to {maximum}"
        try:
            number = int(value)
        except ValueError:
            raise ValueError(expected) from None
        if not minimum <= number <= maximum:
            raise ValueError(expected)
        return number

    return parse


def boolean(value: str) -> bool:
    """true or false."""
    if value.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return value.lower() == "true"


def milliseconds(value: str) -> float:
    """Milliseconds, returned as seconds."""
    return whole(0)(value) / 1000


def addresses(value: str) -> tuple[str, ...]:
    """Addresses, separated by semicolons."""
    try:
        found = tuple(str(address) for address in Address.parse_all(value, "address"))
    except AddressError as error:
        raise ValueError(f"expected {error.expected}, several separated by ';'") from None
    if value and not found:
        raise ValueError(f"expected {EXPECTED}, several separated by ';'")
    return found


def ip_address(value: str) -> str:
    """An IP address; an IPv6 one also in brackets, as Java writes it."""
    found = plain_host(value)
    if not is_ip(found):
        raise ValueError("expected an IP address")
    return found


def hours(value: str) -> frozenset[int]:
    """Hours of the day, separated by semicolons."""
    try:
        return frozenset(whole(0, 23)(part) for part in value.split(";"))
    except ValueError:
        raise ValueError("expected hours from 00 to 23, several separated by ';'") from None


def flush_kind(value: str) -> bool:
    """SYNC_FLUSH (True: an answer waits for the disk) or ASYNC_FLUSH."""
    if value not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        raise ValueError("expected SYNC_FLUSH or ASYNC_FLUSH")
    return value == "SYNC_FLUSH"


def path(value: str) -> Path:
    """A path."""
    return Path(text(value))


_Kind = TypeVar("_Kind")


def load(path: Path, parse: Callable[[bytes], _Kind]) -> _Kind:
    """Return ``parse`` of the file. Raise ConfigurationError, which names the file and the fault."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def delay_levels(value: str) -> tuple[int, ...]:
    """Java's ``messageDelayLevel``: ``1s 5m 2h …``, in seconds."""
    levels = tuple(_delay(each) for each in value.split())
    if not 1 <= len(levels) <= MOST_DELAY_LEVELS:
        raise ValueError(f"expected 1 to {MOST_DELAY_LEVELS} delays such as 1s 5m 2h")
    return levels


def delay_levels_text(value: str) -> str:
    """Check ``messageDelayLevel`` and return its text."""
    delay_levels(value)
    return value


def _delay(value: str) -> int:
    unit = _SECONDS_OF.get(value[-1:])
    if unit is None or not value[:-1].isascii() or not value[:-1].isdigit() or len(value) > 8:
        raise ValueError(f"{value[:50]!r}, expected a number and s, m, h or d")
    return int(value[:-1]) * unit


def read_properties(
    kind: type[_Kind], content: bytes, environment: Mapping[str, str], *, file_name: str, required: tuple[str, ...] = ()
) -> _Kind:
    """Read the dataclass ``kind`` from properties. Raise ConfigurationError, which names the fault."""
    known_keys = properties_of(kind)
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for key, raw in _decoded(content, file_name).items():
        known = known_keys.get(key)
        if known is None:
            unknown.append(key)
        else:
            values[known.name] = _value(known, raw.strip(), environment)
    for key in required:
        if known_keys[key].name not in values:
            raise ConfigurationError(f"{key}: missing, expected in every {file_name}")
        if values[known_keys[key].name] in {"", ()}:
            raise ConfigurationError(f"{key}: empty, expected a value in every {file_name}")
    if unknown:
        logger.info("ignored keys of %s: %s", file_name, ", ".join(sorted(unknown)))
    return kind(**values)


def properties_of(kind: type) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass by their keys."""
    return {each.metadata["key"]: each for each in fields(kind)}


def is_secret(known: Field[Any]) -> bool:
    """Whether the value is secret."""
    return bool(known.metadata["secret"])


def _decoded(content: bytes, file_name: str) -> dict[str, str]:
    try:
        return decode_properties(content)
    except BodyError as error:
        raise ConfigurationError(f"{file_name}: {error}") from error


def _value(known: Field[Any], raw: str, environment: Mapping[str, str]) -> Any:
    try:
        value = _substitute(raw, environment)
    except ValueError as error:
        raise ConfigurationError(f"{_named(known, raw)}: {error}") from None
    try:
        return known.metadata["parse"](value)
    except ValueError as error:  # without its cause: the parser's message may contain the value
        raise ConfigurationError(f"{_named(known, value)}: {error}") from None


def _named(known: Field[Any], value: str) -> str:
    """Return key and value for a message, without a secret value."""
    key: str = known.metadata["key"]
    return key if is_secret(known) else f"{key}={value}"


def _substitute(value: str, environment: Mapping[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        found = environment.get(match[1])
        if found is None:
            raise ValueError(f"the environment has no {match[1]}")
        return found

    return _VARIABLE.sub(replacement, value)
