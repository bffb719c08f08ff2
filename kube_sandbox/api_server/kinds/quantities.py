"""resource.Quantity, as far as rules compare sizes: https://kubernetes.io/docs/reference/using-api/cel/#kubernetes-quantity-library."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_QUANTITY = re.compile(r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)$")
_BINARY = {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal("1e3"),
    "M": Decimal("1e6"), "G": Decimal("1e9"), "T": Decimal("1e12"), "P": Decimal("1e15"), "E": Decimal("1e18"),
}  # fmt: skip


def parse_quantity(text: str) -> Decimal:
    """The number a quantity stands for; ValueError if it is none."""
    found = _QUANTITY.match(str(text))
    if found is None:
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    number, exponent, suffix = found.groups()
    if exponent:
        return Decimal(number + exponent)
    return Decimal(number) * {**_BINARY, **_DECIMAL}[suffix or ""]


def is_quantity(text: Any) -> bool:
    return isinstance(text, str | int) and _QUANTITY.match(str(text)) is not None


def quantity_functions() -> dict[str, Callable[..., Any]]:
    """The functions of CEL's quantity library. A quantity is carried through the evaluator as its own text."""

    def quantity(text: str) -> str:
        parse_quantity(text)
        return text

    def compare(first: str, second: str) -> int:
        one, other = parse_quantity(first), parse_quantity(second)
        return (one > other) - (one < other)

    return {
        "quantity": quantity,
        "isQuantity": is_quantity,
        "isGreaterThan": lambda first, second: compare(first, second) > 0,
        "isLessThan": lambda first, second: compare(first, second) < 0,
        "compareTo": compare,
        "asInteger": lambda text: int(parse_quantity(text)),
        "asApproximateFloat": lambda text: float(parse_quantity(text)),
        "isInteger": lambda text: parse_quantity(text) == int(parse_quantity(text)),
        "sign": lambda text: compare(text, "0"),
    }
