"""``brokerIdentity`` and ``brokerIdentity-temp``: the broker id, which outlives the address.

``brokerIdentity`` is one line ``cluster#broker#id``; the temporary file adds the register check code under which the id was
applied for. The temporary file stays until the outcome of the application is *known*: Java deletes it on a mere time-out and
burns an id. A file that is there but empty or torn is an error, never "a new broker": handing its log to a new id would lose
the identity the controller remembers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rocketmq_replica.log.durable_files import StoreFileError, remove_file, replace_file, sync_names
from rocketmq_replica.term.group_info import BrokerIdentity

if TYPE_CHECKING:
    from pathlib import Path

# A positive Java long, as far as its digits go.
_BROKER_ID = re.compile(r"[1-9][0-9]{0,17}")


class IdentityFiles:
    """The two files next to each other."""

    def __init__(self, path: Path, *, cluster_name: str, broker_name: str) -> None:
        """``path`` is ``storePathBrokerIdentity``; the names are the configured ones, which the files must match."""
        for key, name in (("brokerClusterName", cluster_name), ("brokerName", broker_name)):
            if "#" in name:
                raise StoreFileError(f"{key}={name}: must not contain '#', it separates the fields of {path.name}")
        self._path = path
        self._temporary = path.with_name(path.name + "-temp")
        self._cluster_name = cluster_name
        self._broker_name = broker_name

    def load(self) -> BrokerIdentity | None:
        """The confirmed identity."""
        return self._read(self._path, fields=3)

    def load_applied(self) -> BrokerIdentity | None:
        """The identity that was applied for and not confirmed yet."""
        return self._read(self._temporary, fields=4)

    def save_applied(self, identity: BrokerIdentity) -> None:
        """Remember an application before it is sent."""
        line = f"{identity.cluster_name}#{identity.broker_name}#{identity.broker_id}#{identity.register_check_code}"
        replace_file(self._temporary, line.encode())

    def forget_applied(self) -> None:
        """The controller refused the application."""
        remove_file(self._temporary)

    def confirm(self, identity: BrokerIdentity) -> None:
        """The controller accepted it: first the lasting file, then the temporary one goes."""
        replace_file(self._path, f"{identity.cluster_name}#{identity.broker_name}#{identity.broker_id}".encode())
        remove_file(self._temporary)

    def _read(self, path: Path, *, fields: int) -> BrokerIdentity | None:
        sync_names(path.parent)
        if not path.exists():
            return None
        text = path.read_bytes().decode("utf-8", "replace").strip()
        parts = text.split("#")
        if len(parts) != fields or not _BROKER_ID.fullmatch(parts[2]) or not all(parts):
            expected = "#".join(("cluster", "broker", "id", "checkCode")[:fields])
            raise StoreFileError(f"{path}: expected {expected}, found {text!r}; restore the file, do not delete it")
        if (parts[0], parts[1]) != (self._cluster_name, self._broker_name):
            raise StoreFileError(
                f"{path}: belongs to {parts[0]}#{parts[1]}, the configuration says "
                f"brokerClusterName={self._cluster_name}, brokerName={self._broker_name}"
            )
        return BrokerIdentity(parts[0], parts[1], int(parts[2]), parts[3] if fields == 4 else "")
