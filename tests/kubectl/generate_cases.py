"""Command lines of `kubectl brokergroup generate`: with a manifest that every API server accepts, or with a refused field."""

from __future__ import annotations

from typing import Final

NAMED: Final = ("--name-server", "ns:9876")
ACCEPTED: Final[list[tuple[str, ...]]] = [
    NAMED,
    (*NAMED, "--replicas", "1"),
    (*NAMED, "--replicas", "16", "--durability", "Strict"),
    ("--replicas", "2", "--implementation", "Python", "--size", "1Gi", "--storage-class", "fast", "--durability", "Available"),
    ("--version", "5.3.3", "--name-server", "ns-1:9876", "--name-server", "ns-2:9876", "-o", "json"),
]  # fmt: skip
# The group's name, the options, the field.
REFUSED: Final[list[tuple[str, tuple[str, ...], str]]] = [
    ("orders", (), "spec.nameServers"),
    ("orders", (*NAMED, "--durability", "Best"), "spec.durability"),
    ("orders", ("--implementation", "kafka"), "spec.implementation"),
    ("orders", (*NAMED, "--replicas", "1", "--durability", "Strict"), "spec.replicas"),
    ("orders", ("--name-server", "nameserver"), "spec.nameServers[0]"),
    ("orders", (*NAMED, "--size", "8 GB"), "spec.storage.size"),
    ("orders", (*NAMED, "--version", "5.5.0 "), "spec.version"),
    ("Orders", NAMED, "metadata.name"),
    ("o" * 53, NAMED, "metadata.name"),
]
REFUSED_IDS: Final = [" ".join((group[:9], *options)) for group, options, _ in REFUSED]
