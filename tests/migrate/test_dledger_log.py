"""The files of a DLedger log: what Java wrote is read whole, and nothing that is damaged is taken for the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.migrate.dledger_log import HEADER, LedgerError, ledger_of
from rocketmq_remoting.message_record import Host, decode_record
from tests.support.dledger_files import FILE_BYTES, Sent, change, data_of, entry, filler, recorded_store, write_member

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.migrate.dledger_log import Ledger

SENT = [Sent(queue=number % 2, offset=number // 2) for number in range(20)]
ENTRY_BYTES = len(entry(SENT[0], 0, 0))
PER_FILE = (FILE_BYTES - 8) // ENTRY_BYTES


def ledger(store: Path) -> Ledger:
    return ledger_of(store / "dledger-n0" / "data")


def indexes(store: Path) -> list[int]:
    return [one.index for one in ledger(store).entries()]


def test_what_java_wrote_is_read_to_its_end(tmp_path: Path) -> None:
    found = ledger_of(recorded_store(tmp_path) / "dledger-n1" / "data")
    keys: list[str] = []
    terms: list[tuple[int, int]] = []
    for one in found.entries():
        terms.append((one.index, one.term))
        keys.append(decode_record(one.body).properties["KEYS"])
    assert terms == [(index, 1 if index < 36 else 2) for index in range(71)]
    assert (found.begin, found.end, found.file_bytes, found.stale) == (0, 29987, 8192, False)
    plain = [f"m{number:05d}" for number in range(60)]
    assert [key for key in keys if key.startswith("m")] == plain
    # A half that was not ended by an operation in the log is asked about again, and written again for that.
    assert [key for key in keys if not key.startswith("m")] == [
        "b0", "b1", "b2", "t-commit", "t-commit", "t-back", "t-half", "delayed", "t-commit", "t-back", "t-half",
    ]  # fmt: skip


@given(
    bodies=st.lists(st.integers(0, 900), min_size=1, max_size=25),
    noops=st.sets(st.integers(0, 24)),
    begin=st.sampled_from([0, FILE_BYTES, 7 * FILE_BYTES]),
)
def test_every_entry_is_read_whatever_their_sizes(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[int], noops: set[int], begin: int
) -> None:
    store = tmp_path_factory.mktemp("store")
    sent = [
        Sent(topic="" if number in noops else "orders", body=b"y" * size, offset=number)
        for number, size in enumerate(bodies)
    ]
    end = write_member(store, sent, begin=begin, first_index=3)
    found = ledger(store)
    read = [(one.index, len(one.raw), one.message.queue_offset if one.message else None) for one in found.entries()]
    assert [(index, offset) for index, _, offset in read] == [
        (number, one.offset if one.topic else None) for number, one in enumerate(sent, start=3)
    ]
    assert found.end == end


def test_the_beginning_was_deleted_within_a_file(tmp_path: Path) -> None:
    """DLedger puts a filler in the place of what was deleted."""
    write_member(tmp_path, SENT)
    change(tmp_path, 0, filler(2 * ENTRY_BYTES))
    assert indexes(tmp_path) == [*range(2, 20)]


@pytest.mark.parametrize("kind", ["the body", "the header", "the index", "the kind", "the whole entry"])
@pytest.mark.parametrize("where", ["within a file", "first of a file", "last of a file"])
def test_a_damaged_entry_is_not_the_end(tmp_path: Path, kind: str, where: str) -> None:
    write_member(tmp_path, SENT)
    number = {"within a file": PER_FILE + 2, "first of a file": PER_FILE, "last of a file": 2 * PER_FILE - 1}[where]
    at = (number // PER_FILE) * FILE_BYTES + number % PER_FILE * ENTRY_BYTES
    place, content = {
        "the body": (HEADER.size + 150, b"\xff"),
        "the header": (4, b"\x7f"),
        "the index": (15, b"\xff"),
        "the kind": (0, b"\0\0\0\0"),
        "the whole entry": (0, bytes(ENTRY_BYTES)),
    }[kind]
    change(tmp_path, at + place, content)
    with pytest.raises(LedgerError, match=f"at {at}"):
        indexes(tmp_path)


def test_an_entry_of_an_unknown_kind(tmp_path: Path) -> None:
    write_member(tmp_path, SENT)
    change(tmp_path, ENTRY_BYTES, (3).to_bytes(4))
    with pytest.raises(LedgerError, match=f"the entry at {ENTRY_BYTES} has kind 3"):
        indexes(tmp_path)


def test_the_last_entry_came_in_part(tmp_path: Path) -> None:
    """It may have been acknowledged, so it is no end: the other members have it whole."""
    end = write_member(tmp_path, SENT)
    change(tmp_path, end - 60, bytes(60))
    with pytest.raises(LedgerError, match="damaged"):
        indexes(tmp_path)


def test_entries_that_dledger_has_cut_off_lie_behind_the_end(tmp_path: Path) -> None:
    """A follower cut off entries of term 1 and wrote a shorter one of term 2: what is left of term 1 does not continue it."""
    end = write_member(tmp_path, SENT[:5])
    shorter = entry(Sent(body=b"z", term=2, offset=2), 4, end - ENTRY_BYTES)
    for number in range(2):
        change(
            tmp_path, end + number * ENTRY_BYTES, entry(Sent(offset=5 + number), 5 + number, end + number * ENTRY_BYTES)
        )
    change(tmp_path, end - ENTRY_BYTES, shorter)
    found = ledger(tmp_path)
    assert [(one.index, one.term) for one in found.entries()] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)]
    assert (found.end, found.stale) == (end - ENTRY_BYTES + len(shorter), True)


@pytest.mark.parametrize(
    ("fault", "said"),
    [("cut", "has 100 bytes, expected 2048"), ("missing", "no file begins at 2048"), ("empty", "has no file")],
)
def test_files_that_are_not_a_row(tmp_path: Path, fault: str, said: str) -> None:
    write_member(tmp_path, SENT)
    paths = data_of(tmp_path)
    if fault == "cut":
        paths[-1].write_bytes(paths[-1].read_bytes()[:100])
    else:
        for path in paths[1:2] if fault == "missing" else paths:
            path.unlink()
    with pytest.raises(LedgerError, match=said):
        indexes(tmp_path)


@pytest.mark.parametrize("names", ["all", "two"])
def test_files_whose_names_lie(tmp_path: Path, names: str) -> None:
    """What begins elsewhere is not taken for the end of the log, nor for a log without entries."""
    write_member(tmp_path, SENT)
    paths = data_of(tmp_path)
    if names == "all":
        for path in reversed(paths):
            path.rename(path.with_name(f"{int(path.name) + FILE_BYTES:020d}"))
    else:
        first, second = paths[1].read_bytes(), paths[2].read_bytes()
        paths[1].write_bytes(second)
        paths[2].write_bytes(first)
    with pytest.raises(LedgerError, match=f"file {FILE_BYTES:020d} begins with 0000000100"):
        indexes(tmp_path)


@pytest.mark.parametrize("content", [b"x", b"\0", b"\xff" * 7])
def test_files_that_are_shorter_than_a_header(tmp_path: Path, content: bytes) -> None:
    data = tmp_path / "dledger-n0" / "data"
    data.mkdir(parents=True)
    (data / f"{0:020d}").write_bytes(content)
    if any(content):
        with pytest.raises(LedgerError, match="begins with"):
            indexes(tmp_path)
    else:
        assert indexes(tmp_path) == []


@pytest.mark.parametrize(
    "size", [2**31 - 1, -(2**31), 2**31 - 1 - HEADER.size, -1, 0, HEADER.size, -HEADER.size], ids=str
)
@pytest.mark.parametrize("number", [0, 1, 19])
def test_sizes_at_the_limits_of_their_field(tmp_path: Path, size: int, number: int) -> None:
    """The size of an entry is that of its body and its header: both fields agree, and neither fits the file."""
    write_member(tmp_path, SENT)
    at = number // PER_FILE * FILE_BYTES + number % PER_FILE * ENTRY_BYTES
    body = (size - HEADER.size + 2**31) % 2**32 - 2**31
    change(tmp_path, at + 4, size.to_bytes(4, signed=True))
    change(tmp_path, at + HEADER.size - 4, body.to_bytes(4, signed=True))
    with pytest.raises(LedgerError):
        indexes(tmp_path)


@pytest.mark.parametrize("kind", ["the store", "the data", "a file"])
def test_a_link_in_the_place_of_a_log(tmp_path: Path, kind: str) -> None:
    """The same files under another member's name would count as a second member."""
    write_member(tmp_path / "one", SENT)
    folder = tmp_path / "one" / "dledger-n0"
    other = tmp_path / "two" / "dledger-n1"
    if kind == "the store":
        other.parent.mkdir()
        other.symlink_to(folder)
    elif kind == "the data":
        other.mkdir(parents=True)
        (other / "data").symlink_to(folder / "data")
    else:
        (other / "data").mkdir(parents=True)
        for path in (folder / "data").iterdir():
            (other / "data" / path.name).symlink_to(path)
    with pytest.raises(LedgerError, match="is a symbolic link"):
        ledger_of(other / "data")


def test_the_last_file_is_full_to_its_last_byte(tmp_path: Path) -> None:
    """A filler of 8 bytes ends it, and no file comes after it."""
    rest = FILE_BYTES - PER_FILE * ENTRY_BYTES - 8
    body = 100 + rest
    sent = [*SENT[: PER_FILE - 1], replace(SENT[PER_FILE - 1], body=b"x" * body)]
    end = write_member(tmp_path, sent)
    assert end == FILE_BYTES - 8
    change(tmp_path, end, filler(8))
    assert len(data_of(tmp_path)) == 1
    assert indexes(tmp_path) == [*range(PER_FILE)]


def test_messages_with_ipv6_addresses_and_long_topics(tmp_path: Path) -> None:
    write_member(tmp_path, [Sent(host=Host("fd00::1", 10911)), Sent(topic="t" * 200, offset=1)])
    read = [one.message for one in ledger(tmp_path).entries()]
    assert [one.topic for one in read if one is not None] == ["orders", "t" * 200]
