"""The page's thread beside the controller plane: bounded work and memory for any viewers; and access control."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest

from brokergroup_operator.kube.errors import ApiUnavailableError
from brokergroup_operator.kubectl.status import ABNORMAL
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.page.access import (
    AccessMode,
    KubernetesTokens,
    Sessions,
    TokenFile,
    Viewer,
    host_of,
    is_loopback_host,
)
from brokergroup_operator.page.board import ROWS_AT_ONCE, Board
from brokergroup_operator.page.feed import Feed, SetChanges
from brokergroup_operator.page.live_page import PageSettings
from brokergroup_operator.page.rows import Severity, row_of
from brokergroup_operator.page.server import MOST_VIEWERS
from brokergroup_operator.page.sighting import sighting_of
from brokergroup_operator.page.what_if import wishes_of, without_members
from brokergroup_operator.records.store import GroupKey
from controller_core.model import LiveReplica
from tests.page.scripted_plane import ScriptedPlane, manifest, snapshot
from tests.page.served import served

if TYPE_CHECKING:
    from pathlib import Path

KEY = GroupKey("shop", "orders")


def shown(**changes: Any) -> Any:
    return replace(snapshot(KEY), **changes)


def wishes(**spec: Any) -> Any:
    made = manifest(KEY)
    made["spec"] |= spec
    found = wishes_of(made, snapshot(KEY).record)
    assert found is not None
    return found


# ---- what if


@pytest.mark.parametrize(
    ("spec", "lost", "holds", "text"),
    [
        ({}, {1}, True, "Broker 2 becomes master in epoch 8; nothing acknowledged is lost, and 2 can acknowledge"),
        ({}, {3}, True, "Writes go on with 1, 2; the master must not be lost until it is back"),
        ({}, {2, 3}, False, "Writes are refused: 1 in sync, 2 needed to acknowledge"),
        ({}, {1, 2}, False, "Broker 3 becomes master in epoch 8; writes are refused until 2 are in sync"),
        ({"durability": "Available"}, {1, 2}, True, "Broker 3 becomes master in epoch 8"),
        ({"durability": "Fast"}, {1}, False, "Fast promises nothing across a failover: 0 bytes may be lost"),
        ({"failover": {"priorities": [{"brokerId": 2, "priority": 0}]}}, {1}, True, "Broker 3 becomes master"),
        ({}, {1, 2, 3}, False, "No replica could be elected"),
    ],
)
def test_what_if_asks_the_election_itself(spec: dict[str, Any], lost: set[int], holds: bool, text: str) -> None:
    answer = without_members(wishes(**spec), snapshot(KEY), lost)
    assert text in answer.text
    assert answer.holds is holds


def test_an_unlinked_slave_does_not_count_as_one_that_acknowledges() -> None:
    answer = without_members(wishes(), shown(unlinked=frozenset({3})), {1})
    assert not answer.holds, answer


@pytest.mark.parametrize(
    ("only_older", "holds", "text"),
    [
        (True, True, "consumers receive some messages again"),
        (False, False, "lacks metadata that the present master has"),
    ],
)
def test_an_older_offset_costs_less_than_one_that_is_not_there(only_older: bool, holds: bool, text: str) -> None:
    behind = MetadataDifference(2, MetadataKind.CONSUMER_OFFSET, "payments@billing", only_older=only_older)
    answer = without_members(wishes(), shown(metadata_diverged=(behind,)), {1})
    assert (answer.holds, text in answer.text) == (holds, True)


# ---- the row


@pytest.mark.parametrize(
    ("changes", "known", "severity", "text"),
    [
        ({}, True, Severity.WELL, "All in sync; any one member may be lost"),
        ({"writable": False}, True, Severity.DOWN, "Broker 1 has not confirmed that it is master in its epoch"),
        (
            {"writable": False, "live": {1: LiveReplica(1, epoch=7)}},
            True,
            Severity.REFUSING,
            "In sync and alive: 1; by the spec a write needs 2",
        ),
        ({"writable": False}, False, Severity.DOWN, "Broker 1 can acknowledge no write"),
        ({"closed": True}, True, Severity.REFUSING, "A Retire is about to delete it: no broker acknowledges"),
    ],
)
def test_a_row_says_why_no_write_is_acknowledged(
    changes: dict[str, Any], known: bool, severity: Severity, text: str
) -> None:
    """Without the BrokerGroup (`known` is False) it is not known how many members a write needs."""
    row = row_of(shown(**changes), manifest(KEY) if known else None, wishes() if known else None)
    assert (row.severity, row.text) == (severity, text)


@pytest.mark.parametrize("kind", sorted(ABNORMAL - {"Hibernated"}))
def test_a_group_with_a_condition_that_is_worth_a_look_is_not_well(kind: str) -> None:
    """A claim that was being deleted, or a certificate near its end, left the row at `All in sync`, below all others."""
    conditions = [{"type": kind, "status": "True", "message": "why"}]
    row = row_of(shown(), manifest(KEY) | {"status": {"conditions": conditions}}, wishes())
    assert (row.severity < Severity.WELL, row.text) == (True, f"{kind}: why")


# ---- the feed and the board


async def test_the_feed_takes_a_bounded_turn_and_comes_round() -> None:
    plane = ScriptedPlane(groups=3334)
    seen: set[GroupKey] = set()
    longest: list[int] = []
    all_seen = asyncio.Event()

    def take(sightings: list[Any], _: Any, __: Any) -> None:
        longest.append(len(sightings))
        seen.update(one.snapshot.key for one in sightings)
        if len(seen) == 3334:
            all_seen.set()

    feed = Feed(plane, SetChanges(), take)
    feed.viewed(frozenset({KEY}), has_viewers=True)
    task = asyncio.create_task(feed.run())
    async with asyncio.timeout(60):
        await all_seen.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(longest) > 2, "it looked at everything in one turn"


async def test_a_turn_ends_after_4_ms_of_the_planes_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock by which reading a group takes a millisecond."""
    plane = ScriptedPlane(groups=50)
    clock = SimpleNamespace(monotonic=lambda: plane.looks / 1000, time=lambda: 1_780_000_000.0)
    monkeypatch.setattr("brokergroup_operator.page.feed.time", clock)
    turns: list[int] = []
    done = asyncio.Event()

    def take(sightings: list[Any], _: Any, __: Any) -> None:
        turns.append(len(sightings))
        if sum(turns) >= 20:
            done.set()

    feed = Feed(plane, SetChanges(), take)
    feed.viewed(frozenset(), has_viewers=True)
    task = asyncio.create_task(feed.run())
    async with asyncio.timeout(60):
        await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert turns[:5] == [4] * 5


def test_the_oldest_fact_is_of_the_group_that_was_looked_at_the_longest_ago() -> None:
    plane = ScriptedPlane(groups=3)
    board = Board({})
    assert board.oldest_sighting() is None
    for at, snapshot_of_one in enumerate(plane.shown.values(), start=100):
        board.take([sighting_of(snapshot_of_one, float(at))], [], frozenset(plane.shown))
    assert board.oldest_sighting() == 100.0
    board.take([sighting_of(next(iter(plane.shown.values())), 200.0)], [], frozenset(plane.shown))
    assert board.oldest_sighting() == 101.0


async def test_nobody_looks_and_nothing_is_looked_at() -> None:
    plane = ScriptedPlane(groups=50)
    task = asyncio.create_task(Feed(plane, SetChanges(), lambda *_: None).run())
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert plane.looks == 0


def test_a_board_tells_only_what_is_new_and_in_bounded_parts() -> None:
    plane = ScriptedPlane(groups=1000)
    board = Board({})
    board.take([sighting_of(one, 1.0) for one in plane.shown.values()], [], frozenset(plane.shown))
    assert board.publish()
    version, parts = 0, 0
    told: dict[str, Any] = {}
    while version != board.version:
        version, document = board.rows_after(version, lambda _: True)
        assert len(document["rows"]) <= ROWS_AT_ONCE
        told |= document["rows"]
        parts += 1
    assert len(told) == 1000
    assert parts == 3
    board.take([sighting_of(plane.shown[GroupKey("ns-0", "orders-0000")], 2.0)], [], frozenset(plane.shown))
    assert not board.publish(), "a look that finds the same is no news"
    gone = GroupKey("ns-0", "orders-0000")
    board.take([], [], frozenset(plane.shown) - {gone})
    board.publish()
    _, document = board.rows_after(version, lambda _: True)
    assert document["rows"] == {str(gone): None}
    _, hidden = board.rows_after(0, lambda namespace: namespace == "ns-3")
    assert all(key.startswith("ns-3/") for key in hidden["rows"])


# ---- access control


@pytest.mark.parametrize(
    ("header", "is_ours"),
    [("localhost:9880", True), ("127.0.0.1", True), ("[::1]:80", True), ("127.9.9.9:1", True), ("page.example", False),
     ("127.0.0.1.page.example:9880", False), ("localhost.page.example", False), ("", False), ("10.0.0.1", False)],
)  # fmt: skip
def test_only_a_loopbacks_name_is_answered_without_a_token(header: str, is_ours: bool) -> None:
    assert is_loopback_host(host_of(header)) is is_ours


def test_an_open_page_on_a_wide_address_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match=r"host '0\.0\.0\.0' is no loopback address and access is 'open'"):
        PageSettings(host="0.0.0.0", port=1)
    with pytest.raises(ValueError, match="expected both or neither"):
        PageSettings(host="0.0.0.0", port=1, access=AccessMode.TOKEN)


class Reviews:
    """An API server that knows some tokens and what their owners may list."""

    def __init__(self, rights: dict[str, set[str | None]]) -> None:
        self.rights = rights
        self.away = False

    async def create(self, resource: Any, review: dict[str, Any], **_: Any) -> dict[str, Any]:
        if self.away:
            raise ApiUnavailableError("away")
        spec = review["spec"]
        if resource.kind == "TokenReview":
            known = spec["token"] in self.rights
            return {"status": {"authenticated": known, "user": {"username": spec["token"]} if known else {}}}
        wanted = spec["resourceAttributes"]
        assert (wanted["verb"], wanted["resource"]) == ("list", "brokergroups")
        return {"status": {"allowed": wanted.get("namespace") in self.rights[spec["user"]]}}


async def test_kubernetes_tokens_open_what_their_owner_may_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokergroup_operator.page.access.WRONG_TOKEN_SECONDS", 0.0)
    api = Reviews({"admin": {None}, "shopkeeper": {"shop"}, "nobody": set()})
    check = KubernetesTokens(api, None, lambda: frozenset({"shop", "bank"}))  # type: ignore[arg-type]
    sessions = Sessions(check)
    assert await sessions.viewer_of_token("admin") == Viewer("admin")
    assert await sessions.viewer_of_token("shopkeeper") == Viewer("shopkeeper", frozenset({"shop"}))
    for token in ("nobody", "stranger", "", "x" * 20_000, "a\nb"):
        assert await sessions.viewer_of_token(token) is None
    logged_in = await sessions.log_in("admin")
    assert logged_in is not None
    monkeypatch.setattr("brokergroup_operator.page.access.RECHECK_SECONDS", 0.0)
    api.away = True
    assert await sessions.viewer_of_session(logged_in[0]) is None, "a guessed token gets no access"


async def test_a_revoked_token_ends_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    sessions = Sessions(TokenFile(file))
    logged_in = await sessions.log_in("one")
    assert logged_in is not None
    file.write_text("another")
    assert await sessions.viewer_of_session(logged_in[0]) is not None, "the token is checked again only after a while"
    monkeypatch.setattr("brokergroup_operator.page.access.RECHECK_SECONDS", 0.0)
    assert await sessions.viewer_of_session(logged_in[0]) is None


async def test_nothing_is_told_without_a_token_and_nothing_can_be_changed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("right")
    plane = ScriptedPlane(groups=2)
    with served(plane, token_file=file) as here:
        async with aiohttp.ClientSession() as session:
            for headers, status in (
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({"Cookie": "brokergroup-page=x"}, 401),
            ):
                async with session.get(f"{here.url}api/events", headers=headers) as answer:
                    assert answer.status == status
                    assert "orders" not in await answer.text()
            async with session.get(f"{here.url}api/events", headers={"Authorization": "Bearer right"}) as answer:
                assert answer.status == 200
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                async with session.request(method, f"{here.url}api/events") as answer:
                    assert answer.status == 405
            for path in ("static/../server.py", "static/..%2fserver.py", "static/page.py", "api/", "metrics"):
                async with session.get(f"{here.url}{path}") as answer:
                    assert answer.status == 404
            form = {"data": b'{"token": "right"}', "headers": {"Content-Type": "text/plain"}}
            async with session.post(f"{here.url}api/session", **form) as answer:  # type: ignore[arg-type]
                assert answer.status == 400, "another site's form must not log in a viewer"
            async with session.get(here.url) as answer:
                policy = answer.headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


# ---- viewers that misbehave


async def test_more_viewers_than_there_may_be_are_told_so_and_the_plane_waits_for_none() -> None:
    """Of 1,000 idle streams 256 are kept, the others get 503; the controller plane's loop is not delayed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"needs 4096 open files, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    plane = ScriptedPlane(groups=200)
    with served(plane) as here:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            answers = await asyncio.gather(*(session.get(f"{here.url}api/events") for _ in range(1000)))
            statuses = [answer.status for answer in answers]
            assert statuses.count(200) == MOST_VIEWERS
            assert statuses.count(503) == 1000 - MOST_VIEWERS
            for _ in range(50):  # each has a deadline
                here.do(lambda: plane.show(shown()))
            for answer in answers:
                answer.close()


async def test_a_viewer_that_reads_nothing_costs_no_memory() -> None:
    """Its stream waits; unread changes are merged into one when it reads again."""
    plane = ScriptedPlane(groups=3000)
    with served(plane) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.page.port, limit=1024)
        writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(1.0)
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for turn in range(20):
            here.do(partial(_change_all, plane, turn))
            await asyncio.sleep(0.05)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        assert grown_kib < 150_000, f"{grown_kib} KiB more"
        writer.close()
        del reader


def _change_all(plane: ScriptedPlane, turn: int) -> None:
    for one in list(plane.shown.values()):
        plane.show(replace(one, writable=turn % 2 == 0))


def test_what_is_sent_is_json_of_one_line() -> None:
    from brokergroup_operator.page.server import _event

    told = _event("rows", {"rows": {"a/b": ["x\n\nevent: forged\ndata: {}\r"]}})
    assert told.count(b"\n") == 3
    assert msgspec.json.decode(told.split(b"data: ", 1)[1].strip())["rows"]["a/b"][0].startswith("x\n\n")
