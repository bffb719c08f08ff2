"""One word in a file for the broker's container: ``master``, ``alone`` or ``slave``; no file before a controller was heard.

The preStop hook of the broker waits while it is ``master``: a Java master that gets SIGTERM leaves its group without a master for
about 9 s, so it is told only when another one is master. A master that no other replica will replace (``alone``: none is
alive, or the whole group is deleted or hibernated) need not wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.fence.settings import ROLE_FILE

if TYPE_CHECKING:
    from pathlib import Path

KNOWN_ROLES: Final = ("master", "alone", "slave")


class RoleFile:
    """Written when the word changes; a folder that cannot be written is told once and costs only the waiting."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / ROLE_FILE
        self._written: str | None = None

    @property
    def was_known(self) -> bool:
        """Whether an earlier fence of this pod had heard a controller: the file outlives the container."""
        try:
            return self._file is not None and self._file.read_text(encoding="ascii").strip() in KNOWN_ROLES
        except (OSError, UnicodeDecodeError):
            return False

    def write(self, word: str) -> str | None:
        """Write it, if it is another than before; returns what went wrong, if something did.

        What is not known is not written: the last word stays, as the sign that a controller was heard once.
        """
        if self._file is None or word == self._written or word not in KNOWN_ROLES:
            return None
        self._written = word
        try:
            temporary = self._file.with_suffix(".new")
            temporary.write_text(word + "\n", encoding="ascii")
            temporary.replace(self._file)
        except OSError as error:
            self._file, failed = None, self._file
            return f"{failed} cannot be written: {error}"
        return None
