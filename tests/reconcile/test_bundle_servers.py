"""Whether a bundle verifies the servers of a group: how they are asked, silent ones, and an address with two of them."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from brokergroup_operator.api.tls_steps import trust_file
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile.see import authorities, bundles
from brokergroup_operator.reconcile.see.answers_in_turn import HELD_SECONDS, MOST_ADDRESSES, AnswersInTurn
from brokergroup_operator.reconcile.see.bundles import HandshakingServers, Proof
from brokergroup_operator.reconcile.see.servers_aside import KEPT_SECONDS, ServersAside
from rocketmq_remoting.tls import ClientCertificates, ClientTls, TlsFiles, server_context
from tests.reconcile import world as w
from tests.reconcile.trust_bundles import bundle_is, group, listening, pem, server, slow_loris, trusted
from tests.security.certificates import Authority, make_authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    import pytest

    from tests.reconcile.world import World

__all__ = ["group", "pem"]  # fixtures


# ---- what servers are asked


async def test_each_server_is_verified_by_the_bundle_as_a_part_would(tmp_path: Path) -> None:
    old, new = (make_authority(tmp_path / name, name) for name in ("old", "new"))
    bundle = new.certificate.read_text(encoding="utf-8")
    both = tmp_path / "both.pem"
    both.write_text(old.certificate.read_text(encoding="utf-8") + bundle, encoding="utf-8")
    servers = HandshakingServers(both)
    async with server(old.issue("a")) as of_old, server(new.issue("b")) as of_new, server(None) as plain:
        assert await servers.proof(bundle, [of_new], [of_new]) == Proof()
        assert await servers.proof(both.read_text(encoding="utf-8"), [of_new, of_old], [of_old]) == Proof()
        refused = await servers.proof(bundle, [of_new, of_old], [of_new])
        assert [of_old in why for why in refused.refused] == [True]
        assert not refused.silent
        assert (await servers.proof(bundle, [of_new], [of_old])).refused, "a controller is one of the servers"
        silent = await servers.proof(bundle, [plain], [of_new])
        assert [plain in why for why in silent.silent] == [True]
    gone = await servers.proof(bundle, [], [of_new])
    assert "no controller answers" in gone.silent[0]


async def test_an_authority_that_the_operator_itself_does_not_trust_is_given_to_no_part(tmp_path: Path) -> None:
    """It would lose every server whose certificate is then renewed by that authority. Its file is read anew each time."""
    old, new = (make_authority(tmp_path / name, name) for name in ("old", "new"))
    own = tmp_path / "own.pem"
    own.write_text(old.certificate.read_text(encoding="utf-8"), encoding="utf-8")
    servers, both = HandshakingServers(own), "".join(one.certificate.read_text(encoding="utf-8") for one in (old, new))
    async with server(old.issue("a")) as address:
        [why] = (await servers.proof(both, [address], [address])).silent
        assert "the operator itself does not trust 1 authority of it" in why
        own.write_text(both, encoding="utf-8")
        assert await servers.proof(both, [address], [address]) == Proof()


async def test_a_bundle_of_an_intermediate_authority_verifies_its_servers_as_java_does(tmp_path: Path) -> None:
    make_authority(tmp_path, "root").issue("between", constraint="critical,CA:TRUE")
    between, chain = Authority(tmp_path, "between"), tmp_path / "chain.pem"
    bundle, leaf = between.certificate.read_text(encoding="utf-8"), between.issue("leaf")
    assert leaf.certificate is not None
    chain.write_text(leaf.certificate.read_text(encoding="utf-8") + bundle, encoding="utf-8")
    async with server(TlsFiles(certificate=chain, key=leaf.key)) as address:
        assert await HandshakingServers().proof(bundle, [address], [address]) == Proof()
    # The operator trusts what the parts trust.
    trusts = ClientTls(TlsFiles(ca=between.certificate)).context.get(0.0)
    assert trusts.verify_flags & authorities.context_of(bundle).verify_flags


async def test_a_silent_server_is_named_without_the_reason_for_its_silence(pem: dict[str, str]) -> None:
    """Otherwise a tenant with the right to write a group scans the operator's network: open ports, closed ones, known names."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    servers = HandshakingServers(handshake_seconds=0.2)
    async with server(None) as plain, slow_loris() as slow:
        told = set()
        for address in (plain, slow, f"127.0.0.1:{port}", "no-such-name.invalid:9876"):
            [why, _] = (await servers.proof(pem["old"], [address], [address])).silent
            told.add(why.replace(address, "X"))
    assert told == {"X does not answer over TLS"}


async def test_a_file_of_the_operators_authorities_that_is_no_text_fails_no_pass(
    pem: dict[str, str], tmp_path: Path
) -> None:
    own = tmp_path / "ca.crt"
    own.write_bytes(b"\xff\xfe\x00")
    settings = replace(w.SETTINGS, controller_authority=pem["old"], authority_file=own)
    assert settings.refreshed().controller_authority == pem["old"]
    assert "does not trust" in (await HandshakingServers(own).proof(pem["old"], [], [])).silent[0]


async def test_authorities_that_the_operator_cannot_load_are_none_of_its_own(
    pem: dict[str, str], tmp_path: Path
) -> None:
    """`cat old new` without a line end in between: its former authorities stay in force, and it would refuse the new ones."""
    own = tmp_path / "ca.crt"
    own.write_text(pem["old"].rstrip() + pem["new"], encoding="utf-8")
    lacking = await HandshakingServers(own).proof(pem["both"], [], [])
    assert "does not trust" in lacking.silent[0]
    assert not lacking.refused, "or pods that have the bundle would be made anew with the former one"
    own.write_text(pem["both"], encoding="utf-8")
    assert await HandshakingServers(own).proof(pem["both"], [], []) == Proof()


async def test_a_server_whose_certificate_cannot_be_decoded_is_silent_and_fails_no_pass(tmp_path: Path) -> None:
    """Verified by the tenant's own bundle, and its DNS name is the byte FF: Python fails on it after the handshake."""
    root = make_authority(tmp_path, "root")
    async with server(root.issue("odd", alternative_names="DER:30:03:82:01:FF")) as address:
        found = await HandshakingServers().proof(root.certificate.read_text(encoding="utf-8"), [address], [])
    assert found == Proof(silent=(f"{address} does not answer over TLS",))


async def test_a_bundle_is_loaded_once_for_all_servers_and_not_on_the_event_loop(
    pem: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bundles of more groups than are remembered, each of hundreds of handshakes held the loop for 70 ms."""
    loaded: list[threading.Thread] = []
    context_of = authorities.context_of.__wrapped__

    def load(bundle: str) -> ssl.SSLContext:
        loaded.append(threading.current_thread())
        return context_of(bundle)

    monkeypatch.setattr(bundles, "context_of", load)
    await HandshakingServers().proof(pem["old"], [f"127.0.0.1:{port}" for port in (1, 2, 3)], [])
    assert len(loaded) == 1
    assert loaded[0] is not threading.main_thread()


async def test_names_that_take_long_hold_up_no_server_that_is_given_by_its_address(
    pem: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookups of one tenant's names have every place among the threads."""
    authority = make_authority(tmp_path, "ours")
    never = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: never.wait() and [])
    servers = HandshakingServers(handshake_seconds=0.5)
    try:
        names_asked = [f"slow-{number}.example.com:9876" for number in range(8)]
        assert len((await servers.proof(pem["old"], names_asked, [])).silent) == len(names_asked)
        async with server(authority.issue("a")) as address:
            found = await replace(servers, handshake_seconds=5.0).proof(
                authority.certificate.read_text(encoding="utf-8"), [address], []
            )
    finally:
        never.set()
    assert found == Proof()


async def test_the_handshakes_of_one_question_do_not_take_the_sockets_of_the_controllers(
    pem: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen names of eight addresses each, in each of a tenant's groups."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.64.0.{number}", 1)) for number in range(8)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    at_once: list[int] = []
    under_way = 0

    async def connect(*_: object, **__: object) -> None:
        nonlocal under_way
        under_way += 1
        at_once.append(under_way)
        for _turn in range(3):
            await asyncio.sleep(0)
        under_way -= 1
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", connect)
    await HandshakingServers().proof(pem["old"], [f"name-{number}.example.com:9876" for number in range(16)], [])
    assert len(at_once) == 128, "each address of each name"
    assert max(at_once) <= 16


def test_names_that_a_tenant_writes_each_second_are_not_all_remembered() -> None:
    last = AnswersInTurn()
    for number in range(2 * MOST_ADDRESSES):
        last.show_both("b", f"name-{number}:1", verified=True, now_seconds=float(number) / 100)
    assert len(last._last) <= MOST_ADDRESSES
    newest = f"name-{2 * MOST_ADDRESSES - 1}:1"
    assert last.show_both("b", newest, verified=False, now_seconds=MOST_ADDRESSES / 50), "the newest are"


# ---- a server that never answers


@dataclass
class Waiting:
    """Servers that answer when the test says so."""

    answer: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0

    async def proof(self, bundle: str, addresses: Iterable[str], controllers: Iterable[str]) -> Proof:
        self.asked += 1
        await self.answer.wait()
        return Proof()


async def test_a_pass_does_not_wait_for_a_slow_server_and_has_the_answer_of_the_last_time() -> None:
    waiting, now = Waiting(), [0.0]
    aside = ServersAside(waiting, clock=lambda: now[0], patience_seconds=0.01)
    for _ in range(3):
        assert (await aside.proof("b", ["a:1"], ["c:1"])).silent
    assert waiting.asked == 1, "one question at a time"
    waiting.answer.set()
    await w.until_is("the answer", Proof(), lambda: aside.proof("b", ["a:1"], ["c:1"]))
    now[0] += KEPT_SECONDS - 1
    assert await aside.proof("b", ["a:1"], ["c:1"]) == Proof()
    assert waiting.asked == 1, "the pass that looks, and the one that acts, have one answer"
    now[0] += 2
    waiting.answer.clear()
    assert (await aside.proof("b", ["a:1"], ["c:1"])).silent, "an old answer is none"
    assert (await aside.proof("b", ["a:2"], ["c:1"])).silent
    await aside.stop()


# ---- an address behind which two servers answer


@dataclass
class InTurn:
    """Shows a certificate of the old authority at one connection, and one of the new at the next."""

    context: ssl.SSLContext
    files: list[TlsFiles]

    def turn(self) -> None:
        self.files.append(self.files.pop(0))
        assert self.files[0].certificate is not None
        self.context.load_cert_chain(self.files[0].certificate, self.files[0].key)


@asynccontextmanager
async def in_turn(*files: TlsFiles) -> AsyncIterator[tuple[str, InTurn]]:
    shown = InTurn(server_context(files[0], ClientCertificates.NONE), list(files))
    async with listening(shown.context) as address:
        yield address, shown


async def test_an_address_that_shows_both_authorities_in_turn_is_refused_until_it_has_shown_one_for_long(
    tmp_path: Path,
) -> None:
    old, new = (make_authority(tmp_path / name, name) for name in ("old", "new"))
    bundle, now = new.certificate.read_text(encoding="utf-8"), [0.0]
    servers = HandshakingServers(clock=lambda: now[0])
    async with in_turn(old.issue("a"), new.issue("b")) as (address, shown):

        async def refused() -> str:
            return "".join((await servers.proof(bundle, [address], [address])).refused[:1])

        assert "does not verify" in await refused()
        shown.turn()
        assert not await refused(), "a server that was renewed is not waited for"
        for _ in range(2):
            shown.turn()
            assert f"{address} shows in turn certificates that it verifies and others" in await refused()
        now[0] += HELD_SECONDS - 1
        assert "in turn" in await refused()
        now[0] += 1
        assert not await refused()


async def test_of_a_name_with_several_addresses_each_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part may connect to any of them."""
    old, new = (make_authority(tmp_path / name, name) for name in ("old", "new"))
    bundle = new.certificate.read_text(encoding="utf-8")
    context = server_context(old.issue("a"), ClientCertificates.NONE)
    async with server(new.issue("b")) as first:
        port = int(first.rpartition(":")[2])
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.1", "127.64.9.9")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert await HandshakingServers().proof(bundle, [f"ns:{port}"], []) == Proof(), (
            "one that is silent holds nothing"
        )
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.64.9.9", port, ssl=context):
            [why] = (await HandshakingServers().proof(bundle, [f"ns:{port}"], [])).refused
    assert f"does not verify the certificate of ns:{port}" in why


@dataclass
class OneAddress:
    """All servers are at one address, which shows another authority at each question."""

    address: str
    shown: InTurn
    servers: HandshakingServers = field(default_factory=HandshakingServers)

    async def proof(self, bundle: str, addresses: Iterable[str], controllers: Iterable[str]) -> Proof:
        self.shown.turn()
        return await self.servers.proof(bundle, [self.address], [])


async def test_a_group_with_such_an_address_is_not_restarted_again_and_again(
    group: World, pem: dict[str, str], tmp_path: Path
) -> None:
    old, new = (make_authority(tmp_path / name, name) for name in ("old", "new"))
    seen = set((await w.uids_of(group, PODS)).values())
    async with in_turn(old.issue("a"), new.issue("b")) as (address, shown):
        group.servers = OneAddress(address, shown)
        await bundle_is(group, new.certificate.read_text(encoding="utf-8"))
        for _ in range(60):
            await group.run_round()
            seen |= set((await w.uids_of(group, PODS)).values())
    assert len(seen) <= 5, "of three, one that took the bundle and gave it back"
    assert await trusted(group) == {trust_file(pem["old"])}
    told = (await group.conditions())["TlsChanging"]
    assert told["reason"] == "AuthoritiesHeld"
    assert f"{address} shows in turn" in told["message"]
