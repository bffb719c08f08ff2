"""Reads the text of a bundle of authorities, which a tenant writes: it may be anything, and is read on the controller plane's loop.

So what is read takes time in proportion to its length, and is remembered by its text. What parts are given is written anew from the
certificates that were read: a JVM reads just those, and neither a comment nor another line end restarts a part.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# Three hundred certificates: a ConfigMap holds a MiB, and may have to hold two bundles.
LONGEST_BUNDLE: Final = 400_000
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


@dataclass(frozen=True)
class Authorities:
    """`pem`: each certificate once, in the order of the text. With a complaint it is empty."""

    pem: str = ""
    complaint: str = ""


def read(text: str) -> Authorities:
    """The complaint completes a sentence that begins with what has the text."""
    if len(text) > LONGEST_BUNDLE:
        return Authorities(complaint=f"has {len(text)} characters, expected at most {LONGEST_BUNDLE}")
    return _read(text)


# Few: each may hold two texts of the longest.
@lru_cache(maxsize=16)
def _read(text: str) -> Authorities:
    found: dict[bytes, None] = {}
    for number, part in enumerate(text.split(_BEGIN)[1:], start=1):
        body, end, _ = part.partition(_END)
        if not end:
            return Authorities(complaint=f"can't be read: its certificate {number} has no end ({_END})")
        try:
            content = base64.b64decode("".join(body.split()), validate=True)
        except (binascii.Error, ValueError):
            content = b""
        if not content:
            return Authorities(complaint=f"can't be read: its certificate {number} is no base64")
        found[content] = None
    if not found:
        return Authorities(complaint="has no certificate, expected one or more as PEM")
    pem = "".join(map(ssl.DER_cert_to_PEM_cert, found))
    try:
        context_of(pem)
    except (ssl.SSLError, ValueError) as error:
        return Authorities(complaint=f"can't be read ({error}), expected certificates as PEM")
    return Authorities(pem)


@lru_cache(maxsize=8)
def context_of(pem: str) -> ssl.SSLContext:
    """To verify servers as a part does: an intermediate authority of the bundle is enough, and names do not count.

    Remembered: 140 authorities take 70 ms, in which nothing else runs.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=pem)
    return context


def certificates_in(text: str) -> frozenset[str]:
    """The certificates of a text, to compare them; what is none is left out."""
    parts = (part.partition(_END) for part in text.split(_BEGIN)[1:])
    return frozenset("".join(body.split()) for body, end, _ in parts if end)
