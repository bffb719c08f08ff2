"""Names whose values nobody shows, wherever they stand: in objects, logs, conditions and Events."""

from __future__ import annotations

import re
from typing import Final

WORDS: Final = (
    r"passw|passphrase|pwd|[_.-]pass(?![a-z])|secret|token|credential|access[-_.]?key|private[-_.]?key|api[-_.]?key"
    r"|signature|checkCode"
)
# What has one of these names is taken out whatever it holds.
SECRET_NAME: Final = re.compile(WORDS, re.IGNORECASE)
