"""The election policies a BrokerGroup may name: those that ``controller_core`` has, by the names it has for them."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

# Name -> what it says to a user. A test compares the names with the registry of controller_core.
ELECTION_POLICIES: Final = {
    "most-data": "the replica with the highest epoch and then the most data",
    "preferred-zone": "one in the most wanted zone among those that have nearly the most data (up to 16 MiB less);"
    " not with durability Fast",
}
DEFAULT_ELECTION_POLICY: Final = "most-data"
ELECTION_POLICIES_TEXT: Final = " ".join(f"{name}: {text}." for name, text in ELECTION_POLICIES.items())

ElectionPolicy = Annotated[str, Meta(extra_json_schema={"enum": sorted(ELECTION_POLICIES)})]
