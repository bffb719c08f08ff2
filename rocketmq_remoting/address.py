"""A host and a port: parsed, compared and printed only here, for IPv4, IPv6 and names.

``Address.parse`` takes an address from a configuration, an IPv6 address only in brackets. ``heard_address`` takes one from a peer:
RocketMQ cuts at the last colon, and Java prints ``/[0:0:0:0:0:0:0:1]:10911`` or, before JDK 14, the same without brackets. Equal
addresses have one text: RFC 5952 for IPv6; an IPv4-mapped address, by which a dual-stack socket shows an IPv4 peer, is the IPv4
address in it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final

from rocketmq_remoting.limits import remembered

EXPECTED: Final = "host:port, an IPv6 address in brackets as in [fd00::10]:9876, the port from 1 to 65535"
HIGHEST_PORT: Final = 65535
WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - for listening only, never dialled
_NAME: Final = re.compile(r"(?=.{1,254}\Z)(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(?:\.(?!\Z)|\.?\Z))+")
_ZONE: Final = re.compile(r"[A-Za-z0-9._-]{1,15}")
_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}")
_HEARD_PORT: Final = re.compile(r"[0-9]{1,6}")  # `respelled` sends a leading zero


class AddressError(ValueError):
    """The text is not an address. The message names the field, the value and the expected form."""

    def __init__(self, name: str, text: str, expected: str) -> None:
        super().__init__(f"{name} is {text[:300]!r}, expected {expected}")
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Address:
    """A host without brackets and a port. Equality ignores the spelling of the host and the trailing dot of a name."""

    host: str = field(compare=False)
    port: int
    _key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Store the canonical spelling of the host."""
        host = plain_host(self.host)
        object.__setattr__(self, "host", host)
        object.__setattr__(self, "_key", host.removesuffix("."))

    @classmethod
    def parse(cls, text: str, name: str, *, any_port: bool = False) -> Address:
        """Parse the value of the field ``name``. ``any_port`` allows port 0. Raise AddressError if it is not an address."""
        host, port = _split(text, name)
        lowest = 0 if any_port else 1
        if _PORT.fullmatch(port) is None or not lowest <= int(port) <= HIGHEST_PORT:
            raise AddressError(name, text, EXPECTED if lowest else EXPECTED.replace("from 1", "from 0"))
        return cls(host, int(port))

    @classmethod
    def parse_all(cls, text: str, name: str) -> tuple[Address, ...]:
        """Parse a list separated by semicolons, as RocketMQ writes it. Raise AddressError if a part is not an address."""
        return tuple(cls.parse(part.strip(), name) for part in text.split(";") if part.strip())

    def __str__(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        return f"{bracketed(self.host)}:{self.port}"


def join_address(host: str, port: int | str) -> str:
    """Return ``host:port``, an IPv6 address in brackets. The spelling of the host stays."""
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """Return the host with brackets if it is an IPv6 address, as needed before a port or in a URL."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_ip(host: str) -> bool:
    """Whether the host is an IP address (without brackets) and not a name."""
    return _ip(host) is not None


@remembered
def plain_host(text: str) -> str:
    """Return the canonical host: no brackets; IPv6 by RFC 5952; an IPv4-mapped address as IPv4; a name in lower case."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    found = _ip(host)
    if found is None:
        return host.lower()
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found)


def ip_of_family(ips: str, family: str) -> str:
    """Return a pod's first address (of ``status.podIPs``, joined by commas) of the family IPv4 or IPv6.

    Return its first address if ``family`` is empty, or if the pod has no address of it: then the group's Services report what the
    cluster lacks.
    """
    found = [one.strip() for one in ips.split(",")]
    return next((one for one in found if family and (":" in one) == (family == "IPv6")), found[0])


def local_address(host: str | None, *, is_v6: bool) -> tuple[str, int] | None:
    """Return the address to bind a connection to before it dials an address of this family. None: the kernel chooses.

    A dual-stack pod dials the other family from its other address.
    """
    return (host, 0) if host and host not in WILDCARDS and (":" in host) == is_v6 else None


@remembered
def heard_address(text: str) -> Address | None:
    """Parse an address from a peer, cut at the last colon as RocketMQ does. Return None if it is not an address."""
    host, _, port = text.rpartition("/")[2].rpartition(":")
    plain = plain_host(host)
    if not plain or (":" in plain and not is_ip(plain)):
        return None
    if _HEARD_PORT.fullmatch(port) is None or not 0 < int(port) <= HIGHEST_PORT:
        return None
    return Address(plain, int(port))


@remembered
def host_of(text: str) -> str:
    """Return the canonical host of a peer's ``host:port``; empty if there is none."""
    return plain_host(text.rpartition("/")[2].rpartition(":")[0])


@remembered
def one_spelling(text: str) -> str:
    """Return a peer's ``host:port`` with its IP address in canonical form. Names and other text stay as they are."""
    host, colon, port = text.rpartition(":")
    plain = plain_host(host)
    return join_address(plain, port) if colon and is_ip(plain) else text


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _split(text: str, name: str) -> tuple[str, str]:
    """Split into host and port text. Raise AddressError if the host is neither an IP address nor a name."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise AddressError(name, text, _advice(text))
    if host.startswith("[") or host.endswith("]"):
        inner, percent, zone = host[1:-1].partition("%")
        is_v6 = host.startswith("[") and host.endswith("]") and ":" in inner and is_ip(inner)
        # A zone names a network interface of this machine. Only link-local addresses need one.
        if not is_v6 or (percent and (not _ZONE.fullmatch(zone) or not ipaddress.ip_address(inner).is_link_local)):
            raise AddressError(name, text, EXPECTED)
        return host, port
    if ":" in host:
        raise AddressError(name, text, _advice(text))
    if not is_ip(host) and (_NAME.fullmatch(host) is None or set(host) <= set("0123456789.")):
        raise AddressError(name, text, EXPECTED)
    return host, port


def _advice(text: str) -> str:
    """Return the expected form; for an IPv6 address without brackets, the possible readings with brackets."""
    host, _, port = text.rpartition(":")
    readings = []
    if ":" in host and is_ip(host):
        readings.append(f"[{host}]:{port}")
    if ":" in text and is_ip(text):
        readings.append(f"[{text}]:<port>")
    return f"an IPv6 address in brackets: {' or '.join(readings)}" if readings else EXPECTED
