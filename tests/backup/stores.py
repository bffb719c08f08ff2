"""A store to back up: whole messages in log files of 4 KiB, and what its broker knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api.backup_fields import Manifest
from rocketmq_remoting.message_record import Host, encode_record

if TYPE_CHECKING:
    from brokergroup_operator.backup.files import Store

FILE_BYTES = 4096
HOST = Host("10.1.0.2", 10911)
NAME = "orders/nightly"
KNOWN = Manifest(
    name=NAME, operation="op-uid", group="orders", namespace="shop", cluster_name="c", broker_name="orders",
    broker_id=3, next_broker_id=7, master_epoch=41, implementation="Java", version="5.5.0", confirm_offset=0,
)  # fmt: skip


def message(offset: int, body: bytes = b"x" * 500) -> bytes:
    return encode_record(
        topic="t", body=body, queue_id=0, queue_offset=0, physical_offset=offset, born_timestamp_ms=1, born_host=HOST,
        store_timestamp_ms=2, store_host=HOST, properties=b"KEYS\x01k\x02",
    )  # fmt: skip


def log_bytes(count: int, start: int = 0) -> bytes:
    content = b""
    for _ in range(count):
        content += message(start + len(content))
    return content


def files_of(store: Store) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in store.files()}
