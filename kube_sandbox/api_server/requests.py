"""What a caller may ask besides the object itself: the options of reads, writes, deletions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kube_sandbox.api_server.patching.field_managers import Applied

Propagation = Literal["", "Background", "Foreground", "Orphan"]
FieldValidation = Literal["Ignore", "Warn", "Strict"]


@dataclass
class Write:
    """Options of one create, update, patch or apply; the store puts its warnings here."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: FieldValidation = "Warn"
    #: Server-side apply only: take over fields that other managers own.
    force: bool = False
    warnings: list[str] = field(default_factory=list)
    #: The server's own write: its fields are known to be known.
    trusted: bool = False
    #: Whether the new object comes of a JSON or merge patch: unknown fields are refused in other words then.
    patched: bool = False
    #: Whether the body belongs to nobody else, so that the store may keep it without a copy.
    owns_body: bool = False
    #: Whether the object came into being by this request (201 instead of 200).
    created: bool = False
    #: The store's own note while it serves an apply.
    applied: Applied | None = None


@dataclass(frozen=True)
class Deletion:
    """metav1.DeleteOptions."""

    grace_period_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: Propagation = ""
    dry_run: bool = False


@dataclass(frozen=True)
class Selection:
    """Which objects of a collection: the part that list, watch and deletecollection share."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


EVERYTHING = Selection()
PLAIN_DELETION = Deletion()
