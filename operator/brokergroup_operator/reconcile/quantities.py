"""Reads Kubernetes quantities ("8Gi", "250m") as exact numbers; API servers may spell the same amount differently."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

FACTORS: Final = {
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|[MGTPE]i?|Ki)?")


class QuantityError(ValueError):
    """The text is no quantity."""


def parse(text: str) -> Fraction:
    match = QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is no quantity, expected a number with an optional suffix such as Gi or m")
    return Fraction(match[1]) * FACTORS[match[2] or ""]
