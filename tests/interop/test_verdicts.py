"""The verdicts of the interop run can say no: made-up deliveries, logs and epoch files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interop.accounts import Acknowledged, Seen, account
from tests.interop.logs import compare_epochs, first_difference, read_epochs

if TYPE_CHECKING:
    from pathlib import Path

PROMISED = [Acknowledged("k1", 11, 0, 0, 1), Acknowledged("k2", 22, 0, 1, 2)]
ALL = [Seen("k1", 11, 0, 0), Seen("k2", 22, 0, 1)]


def test_every_message_once_is_no_complaint() -> None:
    result = account("r", PROMISED, ALL)
    assert (result.lost, result.duplicates_beyond_retry) == ([], [])


@pytest.mark.parametrize(
    "seen",
    [
        ALL[:1],
        [ALL[0], Seen("k2", 23, 0, 1)],
        [ALL[0], Seen("k2", 22, 0, 2)],
        [Seen("k2", 22, 0, 0), Seen("k1", 11, 0, 1)],
    ],
    ids=["never came", "other content", "elsewhere", "changed places"],
)
def test_a_promise_that_was_not_kept_is_a_loss(seen: list[Seen]) -> None:
    assert account("r", PROMISED, seen).lost


def test_a_second_copy_needs_a_second_attempt() -> None:
    assert not account("r", PROMISED, [*ALL, Seen("k2", 22, 1, 0)]).duplicates_beyond_retry
    [complaint] = account("r", PROMISED, [*ALL, Seen("k1", 11, 1, 0)]).duplicates_beyond_retry
    assert complaint == "r: k1 2 times in the log, at most 1"
    assert account("r", PROMISED, [*ALL, Seen("k2", 22, 1, 0), Seen("k2", 22, 1, 1)]).duplicates_beyond_retry


def test_one_place_delivered_twice_is_a_duplicate() -> None:
    assert account("r", PROMISED, [*ALL, ALL[1]]).duplicates_beyond_retry == ["r: queue 0 offset 1 delivered 2 times"]


def log(folder: Path, *files: tuple[int, bytes]) -> Path:
    folder.mkdir()
    for start, content in files:
        (folder / f"{start:020}").write_bytes(content)
    return folder


def test_logs_are_compared_over_files_up_to_the_end_and_no_further(tmp_path: Path) -> None:
    one = log(tmp_path / "one", (0, b"abcd"), (4, b"efgh"))
    same = log(tmp_path / "same", (0, b"abcd"), (4, b"efXX"))
    assert first_difference(one, same, 6) is None
    assert first_difference(one, same, 8) == 6
    assert first_difference(one, log(tmp_path / "short", (0, b"abcd")), 8) == 4


def test_an_epoch_file_is_read_and_its_count_is_believed_only_if_it_fits(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    path.write_text("2\n773307083\n7-7000\n8-8000\n")
    assert read_epochs(path) == {7: 7000, 8: 8000}
    path.write_text("3\n773307083\n7-7000\n8-8000\n")
    with pytest.raises(ValueError, match="3 entries announced, 2 there"):
        read_epochs(path)


def traps(python: dict[int, int], java: dict[int, int], *, end: int = 100) -> list[str] | None:
    """The traps that explain the difference; None if something is unexplained."""
    result = compare_epochs({"python": python, "java": java}, java=["java"], end=end)
    return None if result.mismatches else sorted(result.traps.elements())


def test_equal_epoch_files_agree() -> None:
    assert traps({1: 0, 2: 10}, {1: 0, 2: 10}) == []


def test_one_epoch_that_begins_elsewhere_is_a_mismatch_always() -> None:
    assert traps({1: 0, 2: 10}, {1: 0, 2: 11}) is None


def test_a_slave_of_java_may_lack_an_epoch_it_got_in_one_piece_under_the_next_label() -> None:
    assert traps({1: 0, 3: 20}, {1: 0, 2: 10, 3: 20}) == ["next-label"]
    assert traps({1: 0}, {1: 0, 2: 10}) is None, "no later epoch that could have hidden it"
    assert traps({1: 0, 2: 10, 3: 20}, {1: 0, 3: 20}) is None, "ours labels right: a slave of ours misses nothing"


def test_java_may_leave_out_an_epoch_in_which_nothing_was_written() -> None:
    assert traps({1: 0, 3: 10}, {1: 0, 2: 10}) == ["empty-epoch", "empty-epoch"]
    assert traps({1: 0, 2: 100}, {1: 0}, end=100) == ["empty-epoch"]
