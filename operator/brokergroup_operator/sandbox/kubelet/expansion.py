"""Kubernetes' ``$(VAR)`` in commands, arguments and environment values (not the shell's ``$VAR``, which stays).

``$(VAR)`` becomes the variable's value if it is known, and stays as it is if not; ``$$`` is an escaped ``$``.
Source: "Define Dependent Environment Variables" of the Kubernetes documentation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand every reference in ``text``."""

    def value_of(match: re.Match[str]) -> str:
        if match.group(1):
            return "$"
        return variables.get(match.group(2), match.group(0))

    return _REFERENCE.sub(value_of, text)
