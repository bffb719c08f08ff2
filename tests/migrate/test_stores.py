"""The files of a stopped broker: what they say, what is refused, and that making them ready changes no message."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from brokergroup_operator.migrate.stores import Identity, Place, StoreError, StoreReport, inspect, prepare, release
from rocketmq_remoting.message_record import Host, encode_blank, encode_record
from rocketmq_replica.log.epochs import EpochCache, EpochEntry
from rocketmq_replica.log.side_files import decode_epochs, encode_epochs
from tests.support.locked_file import held_by_another_process

if TYPE_CHECKING:
    from pathlib import Path

FILE_BYTES = 4096
HOST = Host("10.1.0.2", 10911)
EPOCHS = encode_epochs(EpochCache([EpochEntry(3, 0), EpochEntry(7, 1000)]))
HOLDER = Identity(cluster_name="DefaultCluster", broker_name="broker-a", broker_id=2)


def full_file(begin: int, body: bytes = b"x" * 500) -> bytes:
    content = messages(5, begin, body)
    return content + encode_blank(FILE_BYTES - len(content))


def messages(count: int, start: int, body: bytes = b"x" * 500) -> bytes:
    content = b""
    for _ in range(count):
        content += encode_record(
            topic="t", body=body, queue_id=0, queue_offset=0, physical_offset=start + len(content), born_timestamp_ms=1,
            born_host=HOST, store_timestamp_ms=2, store_host=HOST, properties=b"KEYS\x01k\x02",
        )  # fmt: skip
    return content


def write_store(root: Path, *, begin: int = 0, body: bytes = b"x" * 500) -> int:
    """Write a store as a stopped Java broker leaves it, a full file, a begun one and a prepared one; return the log's end."""
    log = root / "commitlog"
    log.mkdir(parents=True)
    second = begin + FILE_BYTES
    (log / f"{begin:020d}").write_bytes(full_file(begin))
    begun = messages(3, second, body)
    (log / f"{second:020d}").write_bytes(begun.ljust(FILE_BYTES, b"\0"))
    (log / f"{second + FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{}")
    (root / "lock").write_text("lock")
    return second + len(begun)


def content_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Place:
    """The store of a stopped broker, at the top of its volume."""
    write_store(tmp_path)
    return Place(tmp_path)


def test_a_store_of_static_roles(tmp_path: Path) -> None:
    end = write_store(tmp_path, begin=2 * FILE_BYTES)
    before = content_of(tmp_path)
    report = inspect(Place(tmp_path))
    assert (report.begin, report.end, report.file_bytes) == (2 * FILE_BYTES, end, FILE_BYTES)
    assert (report.epochs, report.last_epoch, report.identity) == ((), 0, None)
    assert report.has_topics
    assert report.stopped_cleanly
    assert content_of(tmp_path) == before


def test_names_of_topics_and_groups_are_compared_by_a_fingerprint(store: Place, tmp_path: Path) -> None:
    assert inspect(store).names == ""
    topics, groups = tmp_path / "config" / "topics.json", tmp_path / "config" / "subscriptionGroup.json"
    groups.write_text('{"subscriptionGroupTable": {"readers": {}}}')
    seen = set()
    for text in ('{"topicConfigTable": {"A": {}}}', '{"topicConfigTable": {"A": {}, "B": {}}}', '{"topicConf', "[]"):
        topics.write_text(text)
        seen.add(inspect(store).names)
    topics.write_text('{"dataVersion": {"counter": 7}, "topicConfigTable": {"B": {"perm": 6}, "A": {}}}')
    assert inspect(store).names in seen
    assert len(seen) == 4


def test_a_broker_that_was_killed_and_a_message_that_came_in_part(tmp_path: Path) -> None:
    end = write_store(tmp_path)
    (tmp_path / "abort").write_text("1")
    (tmp_path / "config" / "topics.json").unlink()
    path = tmp_path / "commitlog" / f"{FILE_BYTES:020d}"
    torn = bytearray(path.read_bytes())
    torn[end - FILE_BYTES - 300] ^= 1
    path.write_bytes(torn)
    report = inspect(Place(tmp_path))
    assert report.end == FILE_BYTES + len(messages(2, FILE_BYTES))
    assert not report.stopped_cleanly
    assert not report.has_topics


def test_an_empty_log_ends_where_its_first_file_begins(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    report = inspect(Place(tmp_path))
    assert (report.begin, report.end, report.tails) == (FILE_BYTES, FILE_BYTES, ())


@pytest.mark.parametrize("queues", ["consumequeue", "consumequeue_r"])
def test_a_long_log_without_consume_queues(tmp_path: Path, queues: str) -> None:
    """Java 5.5.0 makes them anew from the last ten files: no consumer would get the messages before these."""
    end = write_store(tmp_path, begin=9 * FILE_BYTES)
    log = tmp_path / "commitlog"
    for begin in range(FILE_BYTES, 9 * FILE_BYTES, FILE_BYTES):
        (log / f"{begin:020d}").write_bytes(full_file(begin))
    assert inspect(Place(tmp_path)).end == end
    (log / f"{0:020d}").write_bytes(full_file(0))
    with pytest.raises(StoreError, match=r"consumequeue is missing, and the log has 11 files with messages"):
        inspect(Place(tmp_path))
    (tmp_path / queues / "orders" / "0").mkdir(parents=True)
    assert inspect(Place(tmp_path)).end == end


@pytest.mark.parametrize(
    "difference", ["in the last file", "in the file before", "none, but a file more at the beginning"]
)
def test_two_logs_that_end_alike_are_compared_by_their_last_files(tmp_path: Path, difference: str) -> None:
    write_store(tmp_path / "one")
    write_store(tmp_path / "two", body=b"y" * 500 if difference == "in the last file" else b"x" * 500)
    first = tmp_path / "two" / "commitlog" / f"{0:020d}"
    if difference == "in the file before":
        first.write_bytes(messages(5, 0, b"z" * 500).ljust(FILE_BYTES, b"\0"))
    elif difference.startswith("none"):
        first.unlink()
    one, two = (inspect(Place(tmp_path / name)) for name in ("one", "two"))
    assert one.end == two.end
    same = all(mine == its for mine, its in zip(one.tails, two.tails, strict=False))
    assert same == difference.startswith("none")


def test_prepare_writes_the_first_epoch_and_the_identity_and_nothing_else(tmp_path: Path) -> None:
    write_store(tmp_path, begin=FILE_BYTES)
    (tmp_path / "brokerIdentity-temp").write_text("DefaultCluster#broker-a#1#code")
    before, data = inspect(Place(tmp_path)), content_of(tmp_path)
    after = prepare(Place(tmp_path), HOLDER)
    # From 0, wherever the log begins now: two stores whose retention differs must have this epoch in common.
    assert after == replace(before, epochs=((1, 0),), identity=HOLDER)
    assert (tmp_path / "brokerIdentity").read_text() == "DefaultCluster#broker-a#2"
    [epoch] = decode_epochs((tmp_path / "epochFileCheckpoint").read_bytes(), "epochs").entries
    assert (epoch.epoch, epoch.start_offset) == (1, 0)
    changed = {"brokerIdentity", "brokerIdentity-temp", "epochFileCheckpoint"}
    now = content_of(tmp_path)
    assert {name: text for name, text in now.items() if name not in changed} == {
        name: text for name, text in data.items() if name not in changed
    }
    assert "brokerIdentity-temp" not in now
    assert prepare(Place(tmp_path), HOLDER) == after
    assert content_of(tmp_path) == now


def test_prepare_keeps_the_epochs_of_a_controller(store: Place, tmp_path: Path) -> None:
    (tmp_path / "epochFileCheckpoint").write_bytes(EPOCHS)
    (tmp_path / "brokerIdentity").write_text("DefaultCluster#broker-a#5\n")
    assert inspect(store).identity == replace(HOLDER, broker_id=5)
    after = prepare(store, HOLDER)
    assert (after.epochs, after.last_epoch, after.identity) == (((3, 0), (7, 1000)), 7, HOLDER)
    assert (tmp_path / "epochFileCheckpoint").read_bytes() == EPOCHS


@pytest.mark.parametrize("moved", [(), ("commitlog",), ("commitlog", "config", "lock")])
def test_a_store_in_a_folder_is_lifted_to_the_volumes_top_wherever_that_was_cut_off(
    tmp_path: Path, moved: tuple[str, ...]
) -> None:
    write_store(tmp_path / "data" / "store")
    (tmp_path / "logs").mkdir()
    data = content_of(tmp_path / "data" / "store")
    place = Place(tmp_path, "data/store")
    before = inspect(place)
    for name in moved:
        (tmp_path / "data" / "store" / name).rename(tmp_path / name)
    assert inspect(place) == before
    after = prepare(place, HOLDER)
    assert after == replace(before, epochs=((1, 0),), identity=HOLDER)
    assert not (tmp_path / "data" / "store").exists()
    assert data.items() <= content_of(tmp_path).items()
    assert (tmp_path / "logs").is_dir()
    assert prepare(place, HOLDER) == after


def test_a_folder_is_not_lifted_onto_something_else(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    (tmp_path / "config").mkdir()
    before = content_of(tmp_path)
    with pytest.raises(StoreError, match="store/config and config are both there"):
        prepare(Place(tmp_path, "store"), HOLDER)
    assert content_of(tmp_path) == before


def test_a_store_with_a_running_broker_is_refused(store: Place, tmp_path: Path) -> None:
    with held_by_another_process(tmp_path / "lock"):
        for read in (inspect, lambda place: prepare(place, HOLDER)):
            with pytest.raises(StoreError, match="a broker runs on this store"):
                read(store)
    inspect(store)


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("dledger-n0/data/0", "", "DLedger commit log"),
        ("epochFileCheckpoint", "2\n0\n1-0\n", "epochFileCheckpoint is damaged"),
        ("epochFileCheckpoint", "1\n5\n1-0\n", "epochFileCheckpoint is damaged"),
        ("epochFileCheckpoint", "2\n0\n7-0\n3-9\n", "epochFileCheckpoint is damaged"),
        ("epochFileCheckpoint", "", "epochFileCheckpoint is damaged"),
        ("brokerIdentity", "nonsense", "expected <cluster>#<brokerName>#<brokerId>"),
        ("brokerIdentity", str(HOLDER), "brokerIdentity is there, and no epochFileCheckpoint"),
    ],
)
def test_what_is_refused(store: Place, tmp_path: Path, file: str, text: str, fault: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    with pytest.raises(StoreError, match=fault):
        inspect(store)


def test_a_place_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected the folder of a broker's store"):
        inspect(Place(tmp_path / "nowhere"))
    for place in (Place(tmp_path), Place(tmp_path, "store")):
        with pytest.raises(StoreError, match=r"there is no commit log in (store/)?commitlog"):
            inspect(place)


@pytest.mark.parametrize("folder", ["..", "../other", "data/../../other", "/store", ".", "data//../.."])
def test_a_folder_outside_its_volume_is_refused(tmp_path: Path, folder: str) -> None:
    write_store(tmp_path / "other")
    (tmp_path / "volume" / "data").mkdir(parents=True)
    before = content_of(tmp_path)
    for read in (inspect, lambda place: prepare(place, HOLDER)):
        with pytest.raises(StoreError, match=f"folder is '{re.escape(folder)}', expected a path below the volume"):
            read(Place(tmp_path / "volume", folder))
    assert content_of(tmp_path) == before


def test_a_link_in_the_folder_is_not_lifted(tmp_path: Path) -> None:
    """From another place a relative link leads elsewhere."""
    write_store(tmp_path / "store")
    (tmp_path / "store" / "commitlog").rename(tmp_path / "log")
    (tmp_path / "store" / "commitlog").symlink_to("../log")
    with pytest.raises(StoreError, match="store/commitlog is a symbolic link"):
        prepare(Place(tmp_path, "store"), HOLDER)
    assert (tmp_path / "store" / "commitlog").is_symlink()


def test_a_log_with_a_file_missing_is_refused(store: Place, tmp_path: Path) -> None:
    (tmp_path / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    with pytest.raises(StoreError, match=f"no file begins at {FILE_BYTES}"):
        inspect(store)


def test_a_log_file_that_was_cut_is_refused(store: Place, tmp_path: Path) -> None:
    """A copy that was broken off: Java does not load such a log."""
    path = tmp_path / "commitlog" / f"{FILE_BYTES:020d}"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(StoreError, match=f"{FILE_BYTES:020d} has 1000 bytes, expected {FILE_BYTES}"):
        inspect(store)


def test_prepare_leaves_the_store_of_another_group_alone(store: Place, tmp_path: Path) -> None:
    prepare(store, replace(HOLDER, broker_name="broker-b", broker_id=1))
    before = content_of(tmp_path)
    fault = "brokerIdentity is DefaultCluster#broker-b#1, expected one of DefaultCluster#broker-a"
    with pytest.raises(StoreError, match=fault):
        prepare(store, HOLDER)
    assert content_of(tmp_path) == before


@pytest.mark.parametrize("text", [None, "", "2\n0\n3-0\n"])
def test_epochs_whose_file_is_gone_or_torn_come_from_javas_copy(store: Place, tmp_path: Path, text: str | None) -> None:
    """Taken for a log without epochs, it would begin again at epoch 1, below what its clients and slaves have seen."""
    (tmp_path / "brokerIdentity").write_text(str(HOLDER))
    (tmp_path / "epochFileCheckpoint.bak").write_bytes(EPOCHS)
    if text is not None:
        (tmp_path / "epochFileCheckpoint").write_text(text)
    assert prepare(store, HOLDER).epochs == ((3, 0), (7, 1000))
    assert inspect(store).last_epoch == 7
    (tmp_path / "epochFileCheckpoint.bak").unlink()
    assert inspect(store).last_epoch == 7


def test_a_report_with_many_epochs_fits_into_a_termination_message(store: Place, tmp_path: Path) -> None:
    """Kubernetes keeps 4096 bytes of it. The oldest epochs are left out; the last one, which counts, is there."""
    (tmp_path / "brokerIdentity").write_text(str(HOLDER))
    many = [EpochEntry(2_000_000_000 + number, 10**18 + number) for number in range(500)]
    (tmp_path / "epochFileCheckpoint").write_bytes(encode_epochs(EpochCache(many)))
    report = prepare(store, HOLDER)
    assert report.last_epoch == 2_000_000_499
    assert len(msgspec.json.encode(report)) < 4096
    assert len(decode_epochs((tmp_path / "epochFileCheckpoint").read_bytes(), "epochs").entries) == 500


def split(root: Path) -> Place:
    """Move the log of a store to another disk, as storePathCommitLog does."""
    (root / "store" / "commitlog").rename(root / "log")
    return Place(root / "store", log=root / "log")


def test_a_commit_log_on_a_volume_of_its_own_is_read_and_stays_there(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    whole = inspect(Place(tmp_path / "store"))
    place = split(tmp_path)
    assert inspect(place) == whole
    data = content_of(tmp_path / "log")
    assert prepare(place, HOLDER) == replace(whole, epochs=((1, 0),), identity=HOLDER)
    assert content_of(tmp_path / "log") == data
    assert not (tmp_path / "store" / "commitlog").exists()
    assert release(place, to_controller=False) == replace(whole, released=HOLDER)


def test_two_commit_logs_of_one_store_are_refused(tmp_path: Path) -> None:
    """One of them is what the broker had before its log was moved."""
    write_store(tmp_path / "store")
    place = split(tmp_path)
    write_store(tmp_path / "old")
    (tmp_path / "old" / "commitlog").rename(tmp_path / "store" / "commitlog")
    for read in (inspect, lambda place: prepare(place, HOLDER)):
        with pytest.raises(StoreError, match="commitlog is in the store, and --commit-log names another"):
            read(place)


def test_a_commit_log_that_is_nowhere_says_how_to_name_it(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    split(tmp_path)
    with pytest.raises(StoreError, match="is it on another disk, name that folder with --commit-log"):
        inspect(Place(tmp_path / "store"))
    with pytest.raises(StoreError, match=r"there is no commit log in .*nowhere"):
        inspect(Place(tmp_path / "store", log=tmp_path / "nowhere"))


def test_the_commands_take_a_commit_log_of_its_own(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    split(tmp_path)
    whose = ("--cluster", HOLDER.cluster_name, "--broker-name", HOLDER.broker_name, "--broker-id", "2")
    for words, yes in (
        (("check",), ()),
        (("prepare", *whose), ("--yes",)),
        (("release", "--to", "static-roles"), ("--yes",)),
    ):
        verb, *more = words
        log = ("--commit-log", str(tmp_path / "log"))
        done = CliRunner().invoke(app, ["adopt", verb, str(tmp_path / "store"), *more, *log, *yes])
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("folder", ["", "old/store"])
def test_the_commands_show_what_they_change_and_change_it_with_yes(tmp_path: Path, folder: str) -> None:
    """Each line of the plan is a change, and after it there is none left."""
    write_store(tmp_path / folder)
    whose = ("--cluster", HOLDER.cluster_name, "--broker-name", HOLDER.broker_name, "--broker-id", "2")
    moves = [f"what is in {folder} moves to the top of {tmp_path}"] if folder else []

    def run(verb: str, *words: str) -> list[str]:
        where = ["--folder", folder] if verb == "prepare" and folder else []
        done = CliRunner().invoke(app, ["adopt", verb, str(tmp_path), *where, *words])
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()

    identity, epochs = str(HOLDER), "epochFileCheckpoint"
    for verb, words, expected in (
        ("prepare", whose, [*moves, f"{epochs}: epoch 1 from offset 0", f"brokerIdentity: {identity}"]),
        (
            "release",
            ("--to", "static-roles"),
            [
                f"brokerIdentity ({identity}) becomes brokerIdentity.released; {epochs} is kept as {epochs}.released",
                f"{epochs} is removed",
            ],
        ),
        ("release", ("--to", "java-controller"), [f"{epochs}: epoch 0 from offset 0"]),
    ):
        before = content_of(tmp_path)
        end = "nothing was done: say --yes to do it"
        assert run(verb, *words) == [*(f"  {one}" for one in expected), end]
        assert content_of(tmp_path) == before
        [report] = run(verb, *words, "--yes")
        assert content_of(tmp_path) != before
        assert msgspec.json.decode(report, type=StoreReport) == inspect(Place(tmp_path))
        assert run(verb, *words) == ["  the store has all of it already", end]


def test_a_plan_for_a_store_that_is_refused(tmp_path: Path) -> None:
    write_store(tmp_path)
    done = CliRunner().invoke(app, ["adopt", "release", str(tmp_path), "--to", "static-roles"])
    assert (done.exit_code, "there is no brokerIdentity" in done.stderr) == (2, True)
