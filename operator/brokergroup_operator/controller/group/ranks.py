"""Which of several controller planes acts first for a group. Safety never rests on it: the compare-and-set keeps them apart."""

from __future__ import annotations

import hashlib


def rank_of(own_address: str, addresses: tuple[str, ...], group: str) -> int:
    """This plane's place among all for one group, by rendezvous hashing: every plane is first for its share of the groups."""

    def weight(address: str) -> bytes:
        return hashlib.blake2b(f"{address}|{group}".encode(), digest_size=8).digest()

    return sorted(addresses, key=weight).index(own_address) if own_address in addresses else 0
