"""JSON or YAML nested 100,000 deep: an error that names the file, as for any other malformed text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.settings import AdminCredentialsError, read_credentials
from brokergroup_operator.kube.client import decode
from brokergroup_operator.kube.settings import KubeconfigError, settings_from_kubeconfig
from brokergroup_operator.observe.incidents import _documents
from brokergroup_operator.records.file import read_record_file
from brokergroup_operator.records.store import RecordCorruptError
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.log.side_files import load_queue_offsets
from rocketmq_replica.tables import ConsumerOffsets, DelayOffsets, SubscriptionGroups
from rocketmq_replica.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEEP = b"[" * 100_000 + b"]" * 100_000
READERS: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "a group's record": (read_record_file, RecordCorruptError),
    "a kubeconfig": (settings_from_kubeconfig, KubeconfigError),
    "administrators": (read_credentials, AdminCredentialsError),
    "topics": (partial(Topics, system_topics=(), queue_count=1, now_ms=1), StoreFileError),
    "consumer offsets": (ConsumerOffsets, StoreFileError),
    "consumer groups": (partial(SubscriptionGroups, now_ms=1), StoreFileError),
    "delay offsets": (DelayOffsets, StoreFileError),
    "queue offsets": (load_queue_offsets, StoreFileError),
}


@pytest.mark.parametrize("what", READERS)
def test_a_file_that_is_nested_too_deep_is_named(tmp_path: Path, what: str) -> None:
    read, error = READERS[what]
    file = tmp_path / "deep.json"
    file.write_bytes(DEEP)
    with pytest.raises(error, match=r"deep\.json: "):
        read(file)


def test_an_answer_that_is_nested_too_deep_is_a_message_and_no_object() -> None:
    assert decode(b'{"a":' + DEEP + b"}")["message"].startswith('{"a":[[')


def test_a_line_of_the_incident_log_that_is_nested_too_deep_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "incidents.jsonl").write_bytes(DEEP + b'\n{"sequence": 7}\n')
    assert _documents(tmp_path / "incidents.jsonl") == [{"sequence": 7}]
