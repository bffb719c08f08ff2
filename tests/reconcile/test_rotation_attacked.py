"""Another authority while a tenant, a lost ConfigMap or all lost pods stand against it: nothing stalls, and no pod is cut off."""

from __future__ import annotations

import asyncio
import datetime
import socket
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fields import LocalReference
from brokergroup_operator.api.tls_fields import TlsMode, TlsSpec, TrustBundleReference
from brokergroup_operator.api.tls_steps import Made, TlsAsMade, next_tls, trust_file
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, DEPLOYMENTS, PODS, STATEFUL_SETS
from brokergroup_operator.kubectl.explain import explanation
from brokergroup_operator.reconcile.decide.tls_order import made_with
from brokergroup_operator.reconcile.other_groups import Turn
from brokergroup_operator.reconcile.see import authorities, bundles
from brokergroup_operator.reconcile.see.answers_in_turn import HELD_SECONDS, MOST_ADDRESSES, AnswersInTurn
from brokergroup_operator.reconcile.see.bundles import HandshakingServers, Proof
from brokergroup_operator.reconcile.see.servers_aside import KEPT_SECONDS, ServersAside
from rocketmq_remoting.tls import ClientCertificates, ClientTls, TlsFiles, server_context
from tests.reconcile import cases as c
from tests.reconcile import world as w
from tests.reconcile.cluster_place import Place
from tests.reconcile.test_backups import backing_up
from tests.reconcile.test_rotation import (
    BUNDLE,
    Shown,
    bundle_is,
    files,
    given,
    group,
    listening,
    pem,
    place,
    server,
    stored,
    trusted,
)
from tests.reconcile.test_silent_members import unheard
from tests.reconcile.test_tls import CLUSTER, JAVA, PODS_OF_PARTS, pod_is_made, tls
from tests.security.certificates import Authority, make_authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from brokergroup_operator.reconcile.see.observed import Observed
    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.reconcile.world import World

__all__ = ["group", "pem", "place"]  # fixtures
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


# ---- the text of a bundle


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "text",
    [BEGIN + "\n" * 390_000, (BEGIN + "\n") * 13_000, BEGIN + " \n" * 190_000 + "x", f"{BEGIN}\n{END}\n" * 7_000],
)
def test_a_bundle_of_garbage_is_read_in_a_moment(text: str) -> None:
    """The controller plane shares the loop: 1200 line breaks behind a BEGIN once took six seconds, and twice as many fifty."""
    assert authorities.read(text).complaint


def test_a_text_beyond_the_longest_is_not_read_at_all() -> None:
    assert "expected at most 400000" in authorities.read(BEGIN * 40_000).complaint


def test_byte_order_mark_carriage_returns_comments_and_doubles_change_no_bundle(pem: dict[str, str]) -> None:
    """So no part restarts for them, and what a JVM reads is what was verified."""
    for text in (
        "\ufeff" + pem["both"],
        pem["both"].replace("\n", "\r\n"),
        f"# Autoridad de Certificación\n{pem['both']}\n# end",
        pem["both"] + pem["old"],
    ):
        assert authorities.read(text).pem == pem["both"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{old}" + BEGIN + "\nMIIB\n", "certificate 2 has no end"),
        ("{old}" + BEGIN + "\nMI*B\n" + END, "certificate 2 is no base64"),
        ("{old}" + BEGIN + "\nMIIB\n" + END, "can't be read"),
    ],
)
def test_a_bundle_with_one_bad_certificate_is_refused_whole(pem: dict[str, str], text: str, told: str) -> None:
    assert told in authorities.read(text.format(old=pem["old"])).complaint


def test_a_key_beside_the_certificates_is_not_copied(pem: dict[str, str]) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"
    assert authorities.read(key + pem["old"]).pem == pem["old"]


# ---- what servers are asked


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


async def test_what_is_told_of_a_silent_server_does_not_say_why_it_is_silent(pem: dict[str, str]) -> None:
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


def slow_loris() -> AbstractAsyncContextManager[str]:
    """A server that accepts a connection, and never shakes hands."""
    return listening(None)


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


async def test_a_change_that_goes_on_beside_a_silent_server_is_not_told_as_held(
    group: World, pem: dict[str, str]
) -> None:
    await bundle_is(group, pem["both"])
    while await trusted(group) == {trust_file(pem["old"])}:
        await group.run_round()
    group.servers = Shown(pem["old"], is_silent=True)
    await group.run_pass()
    told = (await group.conditions())["TlsChanging"]
    assert told["reason"] == "StepByStep"
    assert "10.0.0.1:10911 does not answer" in told["message"].partition("It goes on, although")[2]


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


# ---- what is lost


async def all_pods_are_lost(world: World) -> None:
    for pod in await world.items(PODS):
        await world.delete(PODS, pod["metadata"]["name"], grace_period_seconds=0)


async def test_a_group_that_loses_all_pods_while_a_bundle_is_held_comes_back_with_the_one_of_before(
    group: World, pem: dict[str, str]
) -> None:
    """With the held one each pod would refuse the servers that it was held for."""
    await bundle_is(group, pem["new"])
    await group.settle()
    await all_pods_are_lost(group)
    await group.settle()
    assert await trusted(group) == {trust_file(pem["old"])}
    assert (await group.conditions())["TlsChanging"]["reason"] == "AuthoritiesHeld"
    group.servers = Shown(pem["new"])
    await group.settle()
    assert await trusted(group) == {trust_file(pem["new"])}


async def test_a_group_whose_bundle_is_deleted_gets_its_lost_pods_back_with_the_one_of_before(
    group: World, pem: dict[str, str]
) -> None:
    await group.delete(CONFIG_MAPS, BUNDLE["name"])
    await all_pods_are_lost(group)
    await group.settle()
    assert len(await group.items(PODS)) == 3
    assert await trusted(group) == {trust_file(pem["old"])}
    assert await stored(group) == {trust_file(pem["old"]): pem["old"]}
    assert "which does not exist" in (await group.conditions())["Stalled"]["message"]


async def test_a_pod_that_is_lost_with_the_copy_of_its_bundle_is_made_when_there_is_one_that_it_can_trust(
    group: World, pem: dict[str, str]
) -> None:
    """While another bundle is held the operator has no text of the former one then: without it a broker connects without TLS."""
    await bundle_is(group, pem["new"])
    await group.settle()
    left = await w.uids_of(group, PODS)
    await group.delete(CONFIG_MAPS, names.config_map_name(group.key.name))
    lost = f"{group.key.name}-2"
    left.pop(lost)
    await group.delete(PODS, lost, grace_period_seconds=0)
    await group.patch_group({"spec": {"image": "example.com/another:1"}})
    await group.settle()
    assert await w.uids_of(group, PODS) == left, "none is made, and none is replaced"
    stalled = (await group.conditions())["Stalled"]
    assert (stalled["status"], stalled["reason"]) == ("True", "AuthoritiesHeld")
    assert f"{trust_file(pem['old'])}, which the group's pods trust, was deleted" in stalled["message"]
    assert any("put the certificates of that file back" in line for line in explanation(await group.group()))
    await group.patch_group({"spec": {"image": None}})
    await bundle_is(group, pem["old"])
    await group.settle()
    assert left.items() <= (await w.uids_of(group, PODS)).items()
    assert await trusted(group) == {trust_file(pem["old"])}
    assert await stored(group) == {trust_file(pem["old"]): pem["old"]}
    assert len(await group.items(PODS)) == 3


async def test_a_pod_that_is_lost_with_the_copy_of_its_bundle_is_made_when_every_server_is_verified(
    group: World, pem: dict[str, str]
) -> None:
    await bundle_is(group, pem["new"])
    await group.settle()
    await group.delete(CONFIG_MAPS, names.config_map_name(group.key.name))
    await group.delete(PODS, f"{group.key.name}-2", grace_period_seconds=0)
    await group.settle()
    assert len(await group.items(PODS)) == 2
    group.servers = Shown(pem["new"])
    await group.settle()
    assert len(await group.items(PODS)) == 3
    assert await trusted(group) == {trust_file(pem["new"])}


def losing_the_file(seen: Observed) -> Observed:
    """The operator has no more the text of the authorities that the group's pods read."""
    made = spec_of()
    lost = TlsAsMade(
        certificate_secret_ref=made.certificate_secret_ref,
        mode=made.mode,
        file="trust-000000000000.pem",
        authorities="",
    )
    return replace(seen, group=structs.replace(seen.group, spec=structs.replace(seen.group.spec, tls=lost)))


@pytest.mark.parametrize(
    ("seen", "step"),
    [(unheard(2), "replace orders-2"), (backing_up(c.settled()), "stop orders-3")],
    ids=["a member that is not heard", "a backup"],
)
def test_while_no_pod_can_be_made_none_is_stopped_that_would_have_to_come_back(seen: Observed, step: str) -> None:
    assert c.steps(seen) == [step]
    held = losing_the_file(seen)
    assert c.steps(held) == []
    assert "trust-000000000000.pem, which the group's pods trust, was deleted" in c.course(held).first[0].why


def test_a_group_that_waits_for_its_lost_authorities_lets_others_roll_meanwhile() -> None:
    """A person must bring them back, perhaps after days."""
    assert c.course(c.rolling(c.outdated(c.settled()))).turn is Turn.HOLDS
    assert c.course(c.rolling(losing_the_file(c.settled()))).turn is Turn.NONE


async def enforcing(place: Place, bundle: str) -> None:
    """All parts trust this bundle, and so do their pods."""
    await bundle_is(place, bundle)
    await place.made(**CLUSTER, tls=tls("Enforcing") | {"trustBundleRef": BUNDLE})
    for name in PODS_OF_PARTS:
        await pod_is_made(place, name, "Enforcing", trusts=trust_file(bundle))


@pytest.mark.parametrize("is_key_alone", [True, False], ids=["the key", "the ConfigMap"])
async def test_name_servers_and_proxies_whose_bundle_is_lost_are_left_as_they_are(
    place: Place, pem: dict[str, str], *, is_key_alone: bool
) -> None:
    """While another one is held: their next pods could not start, and a roll would begin by ending one that serves."""
    await enforcing(place, pem["old"])
    await bundle_is(place, pem["new"])
    await place.run()
    file = trust_file(pem["old"])
    if is_key_alone:
        await place.patch(CONFIG_MAPS, "shop-trust", {"data": {file: None}})
    else:
        await place.delete(CONFIG_MAPS, "shop-trust")
    [of_servers, _] = before = await place.images()
    await place.changed({"image": "example.com/another:1"})
    assert await place.images() == before
    await place.stalls(
        "AuthoritiesHeld", f"{file}, which NameServers and proxies trust, was deleted from ConfigMap shop-trust"
    )
    assert "ClusterAuthoritiesHeld" in await place.events()
    await place.delete(DEPLOYMENTS, "shop-proxy")
    await place.run()
    assert await place.images() == [of_servers]

    await bundle_is(place, pem["old"])
    await place.run()
    assert await place.images() == ["example.com/another:1"] * 2
    assert await files(place) == {file}
    assert not await place.is_stalled()


async def test_an_operator_without_tls_changes_no_part_whose_bundle_is_lost(place: Place, pem: dict[str, str]) -> None:
    await enforcing(place, pem["old"])
    await place.delete(CONFIG_MAPS, "shop-trust")
    plain = Place(place.api, place.key.namespace)
    await plain.run()
    assert await given(place) == {trust_file(pem["old"])}
    assert (await place.condition("Stalled"))[1] == "OperatorWithoutTls"


async def test_the_copies_of_a_group_without_pods_do_not_pile_up(group: World, pem: dict[str, str]) -> None:
    await group.patch_group({"spec": {"maintenance": {"hibernated": True}}})
    await group.settle()
    assert await group.items(PODS) == []
    for name, shows in (("both", "old"), ("new", "new"), ("both", "new")):
        group.servers = Shown(pem[shows])
        await bundle_is(group, pem[name])
        await group.settle()
        assert await stored(group) == {trust_file(pem[name]): pem[name]}
    await group.patch_group({"spec": {"maintenance": {"hibernated": False}}})
    await group.settle()
    assert await trusted(group) == {trust_file(pem["both"])}


async def test_more_bundles_than_a_config_map_holds_are_not_begun() -> None:
    """Else no ConfigMap of the group could be written any more, and none of its pods be made."""
    kept = {trust_file(text): text for text in ("a" * 390_000, "b" * 390_000)}
    made = [Made(TlsMode.ENFORCING, "shop-tls", name) for name in kept]
    trust = await bundles.trust_of(
        spec_of(), "c" * 390_000, problem="", made=made, pods=(), kept={"data": kept}, servers=Shown(""),
        addresses=(), controllers=(),
    )  # fmt: skip
    assert "1170000 characters" in trust.why_held
    now = next_tls(spec_of(), made, trust)
    assert made_with(now) in made


def spec_of() -> TlsSpec:
    return TlsSpec(
        certificate_secret_ref=LocalReference(name="shop-tls"),
        mode=TlsMode.ENFORCING,
        trust_bundle_ref=TrustBundleReference(name=BUNDLE["name"]),
    )


# ---- what a pod was made with


async def test_a_group_without_tls_whose_jvm_arguments_enforce_it_is_on_no_way(
    sandbox: SandboxApiServer, sandbox_world: World
) -> None:
    """docs/concepts/security.md names such arguments for groups without spec.tls."""
    sandbox_world.settings = replace(w.SETTINGS, controller_tls=True)
    await sandbox_world.bring_up(sandbox, **JAVA, jvm={"extraArguments": ["-Dtls.server.mode=enforcing"]})
    assert "TlsChanging" not in await sandbox_world.conditions()


# ---- beside other things


async def test_a_stopped_broker_holds_a_bundle_until_it_starts_again(group: World, pem: dict[str, str]) -> None:
    """Its pod stays, with the bundle that it was made with; the group says that it waits for a person."""
    found = await group.view.store.read(group.key)
    assert found is not None
    slave = next(one for one in found.record.replicas if one != found.record.master_broker_id)
    await group.patch_group({"spec": {"maintenance": {"stoppedBrokers": [slave]}}})
    await group.settle()
    await bundle_is(group, pem["both"])
    await group.settle()
    assert trust_file(pem["old"]) in await trusted(group)
    assert trust_file(pem["old"]) in await stored(group), "its container may start again"
    assert "TlsChanging" in await group.conditions()
    await group.patch_group({"spec": {"maintenance": {"stoppedBrokers": []}}})
    await group.settle()
    assert len(await group.items(PODS)) == 3
    assert await trusted(group) == {trust_file(pem["both"])}
    assert "TlsChanging" not in await group.conditions()


async def test_outside_its_window_a_group_takes_no_bundle(group: World, pem: dict[str, str]) -> None:
    before = {pod["metadata"]["uid"] for pod in await group.items(PODS)}
    today = datetime.datetime.now(datetime.UTC).weekday()
    day = DAYS[(today + 3) % len(DAYS)]
    await group.patch_group({"spec": {"updateStrategy": {"windows": [window(day)]}}})
    await bundle_is(group, pem["both"])
    await group.settle()
    assert {pod["metadata"]["uid"] for pod in await group.items(PODS)} == before
    assert (await group.conditions())["UpToDate"]["reason"] == "OutsideWindow"
    assert (await group.conditions())["TlsChanging"]["reason"] == "StepByStep"
    await group.patch_group({"spec": {"updateStrategy": {"windows": []}}})
    await group.settle()
    assert await trusted(group) == {trust_file(pem["both"])}


DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def window(day: str) -> dict[str, object]:
    return {"days": [day], "start": "02:00", "durationMinutes": 60}


async def test_parts_are_made_with_no_bundle_whose_config_map_could_not_be_written(
    place: Place, pem: dict[str, str]
) -> None:
    """A file that is missing ends a NameServer at its start, and each broker."""
    await bundle_is(place, pem["old"])
    theirs = {"metadata": {"name": "shop-trust", "namespace": place.key.namespace}, "data": {"ca.crt": pem["old"]}}
    await place.api.create(CONFIG_MAPS, theirs)
    await place.made(**CLUSTER, tls=tls("Enforcing") | {"trustBundleRef": BUNDLE})
    assert [await place.names(kind) for kind in (STATEFUL_SETS, DEPLOYMENTS, BROKER_GROUPS)] == [[], [], []]
    assert "ConfigMap shop-trust" in (await place.condition("Stalled"))[2]
    await place.delete(CONFIG_MAPS, "shop-trust")
    await place.run()
    assert await given(place) == await files(place) == {trust_file(pem["old"])}
