"""Times that a person writes: RFC 3339 with an offset, and nothing that two readers could take for two times.

The API server's own `date-time` also takes 2026-11-27t23:00:00+99:99, which is no time; a stored one is therefore read with words
for what is wrong, and not as a fault of the operator.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

EXPECTED: Final = "expected RFC 3339 with an offset, as 2030-01-02T03:04:05Z"
MOMENT_PATTERN: Final = (
    r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)


class MomentError(ValueError):
    """No time; the message says the value and what was expected."""


def moment(text: str) -> dt.datetime:
    """The time in UTC. Raises MomentError; seconds of 60 and 24:00 are no times here, as in Kubernetes."""
    try:
        if re.fullmatch(MOMENT_PATTERN, text) is None:
            raise MomentError(f"{text!r}: {EXPECTED}")
        return dt.datetime.fromisoformat(text).astimezone(dt.UTC)
    except (OverflowError, ValueError) as error:
        if isinstance(error, MomentError):
            raise
        raise MomentError(f"{text!r}: {error}; {EXPECTED}") from error


def told(then: dt.datetime) -> str:
    """To the second, as metav1.Time."""
    return then.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
