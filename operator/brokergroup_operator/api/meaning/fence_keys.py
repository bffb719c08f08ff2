"""The keys with which the operator orders a pod's fence to kill its broker: one a group, all from one root. Pure.

A group's key is made from the operator's root and the group's uid, so the operator never reads a group's Secret: it needs the
right to create one, and no other. The Secret's name carries a part of another value that is made so: with another root (its
Secret was lost) pods name another Secret, and are rolled onto it, instead of holding a key that nobody knows.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject

_MARK_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class FenceKeys:
    """`root` is secret, 32 bytes."""

    root: bytes = field(repr=False)

    def key_of(self, group_uid: str) -> bytes:
        return self._made("key", group_uid)

    def secret_name(self, group: str, group_uid: str) -> str:
        return f"{group}-fence-{self._made('name', group_uid)[:_MARK_BYTES].hex()}"

    def key_in(self, pod: JsonObject) -> bytes | None:
        """The key that this pod's fence has; None where it has none of ours: an older pod, or another root's."""
        made_for = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_GROUP_UID)
        for owner in pod["metadata"].get("ownerReferences") or []:
            if owner.get("kind") == names.BROKER_GROUP_KIND:
                # Of the group before this one, where that was orphaned.
                uid = str(made_for or owner["uid"])
                mounted = [
                    (volume.get("secret") or {}).get("secretName") for volume in pod["spec"].get("volumes") or []
                ]
                return self.key_of(uid) if self.secret_name(str(owner["name"]), uid) in mounted else None
        return None

    def _made(self, what: str, group_uid: str) -> bytes:
        return hmac.digest(self.root, f"brokergroup fence {what}\0{group_uid}".encode(), "sha256")
