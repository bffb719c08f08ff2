"""A host and a port: parsed, compared and printed here alone, for IPv4, IPv6 and names.

``Address.parse`` takes what a person wrote, and an IPv6 address only in brackets. ``heard_address`` takes what a peer wrote:
RocketMQ cuts at the last colon, and Java prints ``/[0:0:0:0:0:0:0:1]:10911`` or, before JDK 14, the same without brackets. Equal
addresses have one text: RFC 5952 for IPv6; an IPv4-mapped address, by which a dual-stack socket shows an IPv4 peer, is the IPv4
address in it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

EXPECTED: Final = "host:port, an IPv6 address in brackets as in [fd00::10]:9876, the port from 1 to 65535"
HIGHEST_PORT: Final = 65535
WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - hosts to listen at, and no host to dial
_NAME: Final = re.compile(r"(?=.{1,254}\Z)(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(?:\.(?!\Z)|\.?\Z))+")
_ZONE: Final = re.compile(r"[A-Za-z0-9._-]{1,15}")
_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}")
_HEARD_PORT: Final = re.compile(r"[0-9]{1,6}")  # `respelled` sends a leading zero


class AddressError(ValueError):
    """A text is no address: names the field, the value and what was expected."""

    def __init__(self, name: str, text: str, expected: str) -> None:
        super().__init__(f"{name} is {text[:300]!r}, expected {expected}")
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Address:
    """A host, without brackets, and a port. Equal where they lead to the same place; a name's last dot does not count."""

    host: str = field(compare=False)
    port: int
    _key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Keep the one spelling of the host."""
        host = plain_host(self.host)
        object.__setattr__(self, "host", host)
        object.__setattr__(self, "_key", host.removesuffix("."))

    @classmethod
    def parse(cls, text: str, name: str, *, any_port: bool = False) -> Address:
        """Return the address a person wrote in the field ``name``; ``any_port`` allows 0, a free one. Else AddressError."""
        host, port = _split(text, name)
        lowest = 0 if any_port else 1
        if _PORT.fullmatch(port) is None or not lowest <= int(port) <= HIGHEST_PORT:
            raise AddressError(name, text, EXPECTED if lowest else EXPECTED.replace("from 1", "from 0"))
        return cls(host, int(port))

    @classmethod
    def parse_all(cls, text: str, name: str) -> tuple[Address, ...]:
        """Return the addresses of a list as RocketMQ writes it, separated by semicolons. AddressError for a part that is none."""
        return tuple(cls.parse(part.strip(), name) for part in text.split(";") if part.strip())

    def __str__(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        return f"{bracketed(self.host)}:{self.port}"


def join_address(host: str, port: int | str) -> str:
    """Return ``host:port``, an IPv6 address in brackets. The host keeps its spelling."""
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """Return the host as it stands before a port, or in a URL."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_ip(host: str) -> bool:
    """Whether this is an IP address, and no name. Brackets are not part of one."""
    return _ip(host) is not None


@lru_cache(maxsize=4096)
def plain_host(text: str) -> str:
    """Return the one spelling of a host: no brackets; RFC 5952; an IPv4-mapped address as IPv4; a name in lower case."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    found = _ip(host)
    if found is None:
        return host.lower()
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found)


def ip_of_family(ips: str, family: str) -> str:
    """Return the first of a pod's addresses (``status.podIPs``, by commas) of the family IPv4 or IPv6; without a family the first.

    Where the pod has none of that family, its first one: the Services of the group say what the cluster lacks.
    """
    found = [one.strip() for one in ips.split(",")]
    return next((one for one in found if family and (":" in one) == (family == "IPv6")), found[0])


def local_address(host: str | None, *, is_v6: bool) -> tuple[str, int] | None:
    """Return what a connection is bound to before it dials an address of this family; None where the kernel has to choose.

    A pod of both families dials the other one from its other address.
    """
    return (host, 0) if host and host not in WILDCARDS and (":" in host) == is_v6 else None


@lru_cache(maxsize=4096)
def heard_address(text: str) -> Address | None:
    """Return the address that a peer wrote, cut at the last colon as RocketMQ does; None where it is none."""
    host, _, port = text.rpartition("/")[2].rpartition(":")
    plain = plain_host(host)
    if not plain or (":" in plain and not is_ip(plain)):
        return None
    if _HEARD_PORT.fullmatch(port) is None or not 0 < int(port) <= HIGHEST_PORT:
        return None
    return Address(plain, int(port))


@lru_cache(maxsize=4096)
def host_of(text: str) -> str:
    """Return the host of a peer's ``host:port`` in its one spelling; empty where there is none."""
    return plain_host(text.rpartition("/")[2].rpartition(":")[0])


@lru_cache(maxsize=4096)
def one_spelling(text: str) -> str:
    """Return a peer's ``host:port`` with its IP address in the one spelling. Names, and what is no address, stay as they are."""
    host, colon, port = text.rpartition(":")
    plain = plain_host(host)
    return join_address(plain, port) if colon and is_ip(plain) else text


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _split(text: str, name: str) -> tuple[str, str]:
    """Return the host and the port's text. AddressError for a host that is neither an IP address nor a name."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise AddressError(name, text, _advice(text))
    if host.startswith("[") or host.endswith("]"):
        inner, percent, zone = host[1:-1].partition("%")
        is_v6 = host.startswith("[") and host.endswith("]") and ":" in inner and is_ip(inner)
        # A zone names an interface of this one machine, which only a link-local address needs.
        if not is_v6 or (percent and (not _ZONE.fullmatch(zone) or not ipaddress.ip_address(inner).is_link_local)):
            raise AddressError(name, text, EXPECTED)
        return host, port
    if ":" in host:
        raise AddressError(name, text, _advice(text))
    if not is_ip(host) and (_NAME.fullmatch(host) is None or set(host) <= set("0123456789.")):
        raise AddressError(name, text, EXPECTED)
    return host, port


def _advice(text: str) -> str:
    """Return what was expected; for an IPv6 address without brackets, where they belong."""
    host, _, port = text.rpartition(":")
    readings = []
    if ":" in host and is_ip(host):
        readings.append(f"[{host}]:{port}")
    if ":" in text and is_ip(text):
        readings.append(f"[{text}]:<port>")
    return f"an IPv6 address in brackets: {' or '.join(readings)}" if readings else EXPECTED
