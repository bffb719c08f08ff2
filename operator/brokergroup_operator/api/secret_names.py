"""Which names say that a value is a secret. A module of its own, since the kubectl plugin imports it and starts without msgspec."""

from __future__ import annotations

import re
from typing import Final

WORDS: Final = (
    r"passw|passphrase|pwd|[_.-]pass(?![a-z])|secret|token|credential|access[-_.]?key|private[-_.]?key|api[-_.]?key"
    r"|signature|checkCode"
)
# Entries with such a name are removed from objects, logs, conditions and Events, whatever their value.
SECRET_NAME: Final = re.compile(WORDS, re.IGNORECASE)
