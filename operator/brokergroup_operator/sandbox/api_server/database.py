"""Commits in an SQLite file, so that a sandbox can be stopped and started again with its objects.

One row per object, one for the revision. Written in the same call that commits: what was answered is on disk.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.sandbox.api_server.storage import ObjectKey, StorageKey, Version

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
  api_group TEXT NOT NULL, plural TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  resource_version INTEGER NOT NULL, object BLOB NOT NULL,
  PRIMARY KEY (api_group, plural, namespace, name)
);
CREATE TABLE IF NOT EXISTS revision (only_row INTEGER PRIMARY KEY CHECK (only_row = 0), value INTEGER NOT NULL);
"""


class DatabaseError(Exception):
    """The file cannot be a sandbox's database; says why."""


class Database:
    """Implements `storage.Durable`. Opening and loading raise DatabaseError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> DatabaseError:
        return DatabaseError(
            f"{self._path}: {error}; expected a sandbox's SQLite file, or none yet in a folder to write in"
        )

    def load(self) -> tuple[int, list[tuple[StorageKey, ObjectKey, int, Any]]]:
        """The revision, and every object with its version."""
        try:
            return self._load()
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise self._unusable(error) from error

    def _load(self) -> tuple[int, list[tuple[StorageKey, ObjectKey, int, Any]]]:
        row = self._connection.execute("SELECT value FROM revision").fetchone()
        rows = self._connection.execute(
            "SELECT api_group, plural, namespace, name, resource_version, object FROM objects"
        )
        loaded: list[tuple[StorageKey, ObjectKey, int, Any]] = [
            ((group, plural), (namespace, name), resource_version, msgspec.json.decode(encoded))
            for group, plural, namespace, name, resource_version, encoded in rows
        ]
        return (row[0] if row else 1), loaded

    def put(self, key: StorageKey, name: ObjectKey, version: Version) -> None:
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.execute(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)",
                (*key, *name, version.resource_version, version.encoded),
            )
            self._set_revision(version.resource_version)

    def remove(self, key: StorageKey, name: ObjectKey, revision: int) -> None:
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.execute(
                "DELETE FROM objects WHERE api_group = ? AND plural = ? AND namespace = ? AND name = ?", (*key, *name)
            )
            self._set_revision(revision)

    def _set_revision(self, revision: int) -> None:
        self._connection.execute("INSERT OR REPLACE INTO revision VALUES (0, ?)", (revision,))

    def close(self) -> None:
        self._connection.close()
