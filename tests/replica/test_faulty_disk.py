"""Drawn lives on a faulty disk (``faulty_lives.py``): a small number of the same ones each day, and proof that they can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketmq_replica.log import disk
from rocketmq_replica.log.log_flusher import Flush, LogFlusher
from tests.replica.faulty_lives import live

if TYPE_CHECKING:
    from pathlib import Path

LIVES = 200


def test_what_was_promised_is_there_after_every_life(tmp_path: Path) -> None:
    lives = [live(seed, tmp_path / "life") for seed in range(LIVES)]
    assert sum(life.acknowledged for life in lives) > LIVES
    assert sum(life.faults for life in lives) > LIVES / 2


def _finishes_whatever_was_cut(self: LogFlusher, flush: Flush) -> None:
    self.durable_offset = max(self.durable_offset, flush.end_offset)
    self._dirty.clear()


def _forgets_failures(self: LogFlusher, flush: Flush) -> None:
    for descriptor in flush.descriptors:
        try:
            disk.sync_data(descriptor)
        except OSError:
            self._dirty.clear()


@pytest.mark.parametrize(
    ("name", "wrong"), [("finish", _finishes_whatever_was_cut), ("run", _forgets_failures)], ids=["cut", "failed"]
)
def test_a_flusher_that_promises_too_much_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: object
) -> None:
    monkeypatch.setattr(LogFlusher, name, wrong)
    with pytest.raises(AssertionError, match="--seed"):
        [live(seed, tmp_path / "life") for seed in range(LIVES)]
