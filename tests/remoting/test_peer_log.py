"""A peer fills no log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rocketmq_remoting.limits import LINES_PER_WINDOW, WINDOW_SECONDS, PeerLog

if TYPE_CHECKING:
    import pytest


def test_a_window_has_its_lines_and_the_next_one_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_seconds = 1000.0
    monkeypatch.setattr("rocketmq_remoting.limits.time.monotonic", lambda: now_seconds)
    log = PeerLog(logging.getLogger("tests.peer_log"))
    for number in range(LINES_PER_WINDOW + 7):
        log.warning("peer %d", number)
    assert len(caplog.records) == LINES_PER_WINDOW
    now_seconds += WINDOW_SECONDS
    log.warning("peer again")
    told = [record.getMessage() for record in caplog.records[LINES_PER_WINDOW:]]
    assert told == ["7 more warnings about peers were left out", "peer again"]


def test_a_peers_words_begin_no_line_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    log = PeerLog(logging.getLogger("tests.peer_log"))
    log.warning("%s: %r said %s", "peer", b"x", "name\n2026-11-23 ERROR made up\x1b[31m Ünï\u202e")
    (record,) = caplog.records
    assert record.getMessage() == "peer: b'x' said name\\n2026-11-23 ERROR made up\\x1b[31m Ünï\\u202e"
