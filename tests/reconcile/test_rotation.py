"""Another authority for a group and for a whole cluster, by spec.tls.trustBundleRef: what is given, what is held, what is told."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_steps import Made, made_of, trust_file
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, DEPLOYMENTS, PODS, STATEFUL_SETS
from brokergroup_operator.kubectl.explain import explanation
from brokergroup_operator.reconcile.see.authorities import certificates_in
from brokergroup_operator.reconcile.see.bundles import HandshakingServers, Proof
from rocketmq_remoting.tls import ClientCertificates, server_context
from tests.reconcile import world as w
from tests.reconcile.cluster_place import Place
from tests.reconcile.test_tls import CLUSTER, JAVA, PODS_OF_PARTS, SERVED, all_are_ready, modes, pod_is_made, tls
from tests.security.certificates import make_authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer
    from rocketmq_remoting.tls import TlsFiles
    from tests.reconcile.world import World

BUNDLE = {"name": "authorities", "key": "ca-bundle.crt"}


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three bundles, by name."""
    folder = tmp_path_factory.mktemp("authorities")
    old, new = (make_authority(folder, name).certificate.read_text(encoding="utf-8") for name in ("old", "new"))
    return {"old": old, "both": old + new, "new": new}


@dataclass
class Shown:
    """What all servers show: a certificate of this authority. Or they are silent."""

    authority: str
    is_silent: bool = False
    asked: list[str] = field(default_factory=list)

    async def proof(self, bundle: str, addresses: Iterable[str], controllers: Iterable[str]) -> Proof:
        self.asked += [*addresses, *controllers]
        if self.is_silent:
            return Proof(silent=("10.0.0.1:10911 does not answer",))
        if certificates_in(self.authority) <= certificates_in(bundle):
            return Proof()
        return Proof(refused=("it does not verify the certificate of 10.0.0.1:10911",))


# ---- a group


async def bundle_is(world: World | Place, text: str) -> None:
    made = {"metadata": {"name": BUNDLE["name"], "namespace": world.key.namespace}, "data": {BUNDLE["key"]: text}}
    try:
        await world.patch(CONFIG_MAPS, BUNDLE["name"], {"data": made["data"]})
    except NotFoundError:
        await world.api.create(CONFIG_MAPS, made)


async def trusted(world: World) -> set[str]:
    return {made_of(pod).trusts for pod in await world.items(PODS)}


async def stored(world: World) -> dict[str, str]:
    config_map = await world.get(CONFIG_MAPS, names.config_map_name(world.key.name))
    return {name: text for name, text in config_map["data"].items() if name.startswith("trust-")}


@pytest.fixture
async def group(sandbox: SandboxApiServer, sandbox_world: World, pem: dict[str, str]) -> World:
    """It trusts the old authority, and its servers show it."""
    world = sandbox_world
    world.settings, world.servers = replace(w.SETTINGS, controller_tls=True), Shown(pem["old"])
    await bundle_is(world, pem["old"])
    await world.bring_up(sandbox, **JAVA, tls=tls("Enforcing") | {"trustBundleRef": BUNDLE})
    assert await trusted(world) == {trust_file(pem["old"])}
    assert await stored(world) == {trust_file(pem["old"]): pem["old"]}
    return world


async def test_a_group_takes_the_new_authority_beside_the_old_one_and_then_alone(
    group: World, pem: dict[str, str]
) -> None:
    assert isinstance(group.servers, Shown)
    for bundle, shows in (("both", "old"), ("new", "new")):
        await bundle_is(group, pem[bundle])
        group.servers = Shown(pem[shows])
        seen = set()
        for _ in range(30):
            await group.run_pass()
            # A container that starts again before its pod's turn finds the file that it was made with.
            assert await trusted(group) <= (await stored(group)).keys()
            seen.add(len([pod for pod in await group.items(PODS) if not pod["metadata"].get("deletionTimestamp")]))
            await group.run_kubelet()
            await group.run_brokers()
        await group.settle()
        assert min(seen) >= 2, "one pod at a time"
        assert "ns.default:9876" in group.servers.asked, "as the brokers mean it"
        assert await trusted(group) == {trust_file(pem[bundle])}
        assert await stored(group) == {trust_file(pem[bundle]): pem[bundle]}
        assert "TlsChanging" not in await group.conditions()


async def test_an_authority_that_a_server_still_shows_is_not_dropped_and_the_group_says_so(
    group: World, pem: dict[str, str]
) -> None:
    await bundle_is(group, pem["new"])
    await group.settle()
    assert await trusted(group) == {trust_file(pem["old"])}
    told = (await group.conditions())["TlsChanging"]
    assert (told["status"], told["reason"]) == ("True", "AuthoritiesHeld")
    assert "it does not verify the certificate of 10.0.0.1:10911" in told["message"]
    assert f"orders-1 (Enforcing, trusts {trust_file(pem['old'])})" in told["message"].replace(group.key.name, "orders")
    assert any("AuthoritiesHeld" in line for line in explanation(await group.group()))
    group.servers = Shown(pem["new"])
    await group.settle()
    assert await trusted(group) == {trust_file(pem["new"])}


async def test_a_silent_server_holds_the_first_pod_and_not_what_has_begun(group: World, pem: dict[str, str]) -> None:
    group.servers = Shown(pem["old"], is_silent=True)
    await bundle_is(group, pem["both"])
    await group.settle()
    assert await trusted(group) == {trust_file(pem["old"])}
    group.servers = Shown(pem["old"])
    while await trusted(group) == {trust_file(pem["old"])}:
        await group.run_round()
    group.servers = Shown(pem["old"], is_silent=True)
    await group.settle()
    assert await trusted(group) == {trust_file(pem["both"])}


async def test_a_bundle_that_is_lost_while_another_is_held_restarts_no_pod(group: World, pem: dict[str, str]) -> None:
    """What they trust can't be made again then; by the Secret's ca.crt they might refuse each other."""
    before = {pod["metadata"]["uid"] for pod in await group.items(PODS)}
    await bundle_is(group, pem["new"])
    await group.settle()
    await group.delete(CONFIG_MAPS, names.config_map_name(group.key.name))
    await group.settle()
    assert {pod["metadata"]["uid"] for pod in await group.items(PODS)} == before
    await bundle_is(group, pem["old"])
    await group.settle()
    assert await stored(group) == {trust_file(pem["old"]): pem["old"]}
    assert {pod["metadata"]["uid"] for pod in await group.items(PODS)} == before


async def test_a_paused_group_restarts_for_no_authority(group: World, pem: dict[str, str]) -> None:
    await group.patch_group({"spec": {"maintenance": {"paused": True}}})
    await bundle_is(group, pem["both"])
    await group.settle()
    assert await trusted(group) == {trust_file(pem["old"])}
    assert (await group.conditions())["TlsChanging"]["reason"] == "StepByStep"
    await group.patch_group({"spec": {"maintenance": {"paused": False}}})
    await group.settle()
    assert await trusted(group) == {trust_file(pem["both"])}


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "has no certificate"), ("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----", "can't be read")],
)
async def test_a_bundle_that_is_none_changes_no_pod_and_is_named(group: World, text: str, told: str) -> None:
    before = {pod["metadata"]["uid"] for pod in await group.items(PODS)}
    await bundle_is(group, text)
    await group.settle()
    assert {pod["metadata"]["uid"] for pod in await group.items(PODS)} == before
    stalled = (await group.conditions())["Stalled"]
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert "key ca-bundle.crt, of spec.tls.trustBundleRef" in stalled["message"]
    assert told in stalled["message"]


async def test_another_secret_is_taken_over_permissive(group: World, pem: dict[str, str]) -> None:
    """Of which authority it is the operator does not know: beside a pod that verifies no pod may show it."""
    spec = tls("Enforcing", "other-tls") | {"trustBundleRef": BUNDLE}
    await group.patch_group({"spec": {"tls": spec}})
    group.servers = Shown(pem["old"])
    stages: list[set[Made]] = []
    for _ in range(120):
        await group.run_round()
        made = {made_of(pod) for pod in await group.items(PODS)}
        verifying = {one.secret for one in made if one.verifies}
        assert not verifying or {one.secret for one in made} == verifying, made
        stages += [made] if [made] != stages[-1:] else []
    await group.settle()
    assert {(str(one.mode), one.secret) for one in stages[-1]} == {("Enforcing", "other-tls")}
    assert any({(str(one.mode), one.secret) for one in made} == {("Permissive", "shop-tls")} for made in stages)


async def test_fences_of_a_group_without_a_bundle_get_the_operators_new_authority_without_a_restart(
    sandbox: SandboxApiServer, sandbox_world: World, pem: dict[str, str], tmp_path: Path
) -> None:
    own = tmp_path / "ca.crt"
    own.write_text(pem["old"], encoding="utf-8")
    world = sandbox_world
    world.settings = replace(w.SETTINGS, controller_tls=True, controller_authority=pem["old"], authority_file=own)
    await world.bring_up(sandbox, **JAVA)
    before = {pod["metadata"]["uid"] for pod in await world.items(PODS)}
    assert len(before) == 3
    own.write_text(pem["both"], encoding="utf-8")
    await world.settle()
    config_map = await world.get(CONFIG_MAPS, names.config_map_name(world.key.name))
    assert config_map["data"][names.AUTHORITY_FILE] == pem["both"]
    assert {pod["metadata"]["uid"] for pod in await world.items(PODS)} == before


# ---- a cluster


@pytest.fixture
def place(namespace: tuple[KubernetesApi, str], pem: dict[str, str]) -> Place:
    return Place(*namespace, SERVED, servers=Shown(pem["old"]))


async def given(place: Place) -> set[str]:
    """What the parts' pods are made to trust."""
    group = await place.get(BROKER_GROUPS, "shop-0")
    found = {(group["spec"]["tls"].get("trustBundleRef") or {}).get("key", "")}
    for resource, name in ((STATEFUL_SETS, "shop-nameserver"), (DEPLOYMENTS, "shop-proxy")):
        found.add(made_of((await place.get(resource, name))["spec"]["template"]).trusts)
    return found


async def files(place: Place) -> set[str]:
    return set((await place.get(CONFIG_MAPS, "shop-trust"))["data"])


async def test_a_cluster_takes_another_authority_and_drops_the_old_one_only_when_no_server_shows_it(
    place: Place, pem: dict[str, str]
) -> None:
    await bundle_is(place, pem["old"])
    await place.made(**CLUSTER, tls=tls("Enforcing") | {"trustBundleRef": BUNDLE})
    assert await given(place) == await files(place) == {trust_file(pem["old"])}
    for name in PODS_OF_PARTS:
        await pod_is_made(place, name, "Enforcing", trusts=trust_file(pem["old"]))
    await bundle_is(place, pem["both"])
    await place.run()
    assert await given(place) == {trust_file(pem["both"])}
    assert await files(place) == {trust_file(pem["old"]), trust_file(pem["both"])}, "pods still read the old one"
    for done, name in enumerate(PODS_OF_PARTS):
        await all_are_ready(place)
        await place.run()
        status, reason, message = await place.condition("Ready")
        assert (status, reason) == ("False", "TlsPending"), "an administrator changes the certificates when it is Ready"
        there = ", ".join(f"{one} (Enforcing, trusts {trust_file(pem['old'])})" for one in sorted(PODS_OF_PARTS[done:]))
        assert message.endswith(f"waits for {there}")
        await pod_is_made(place, name, "Enforcing", trusts=trust_file(pem["both"]))
    await place.run()
    assert await files(place) == {trust_file(pem["both"])}
    assert (await place.condition("Ready"))[:2] == ("True", "AllReady")

    await bundle_is(place, pem["new"])
    await place.run()
    assert await given(place) == {trust_file(pem["both"])}
    status, reason, message = await place.condition("Ready")
    assert (status, reason) == ("False", "TlsPending")
    assert "it does not verify the certificate of 10.0.0.1:10911" in message
    assert f"all parts are made with Enforcing, trusts {trust_file(pem['both'])}" in message
    renewed = Place(place.api, place.key.namespace, SERVED, servers=Shown(pem["new"]))
    await renewed.run()
    assert await given(place) == {trust_file(pem["new"])}


async def test_a_clusters_other_secret_is_taken_over_permissive(place: Place) -> None:
    await place.made(**CLUSTER, tls=tls("Enforcing"))
    for name in PODS_OF_PARTS:
        await pod_is_made(place, name, "Enforcing")
    await place.changed({"tls": tls("Enforcing", "other-tls")})
    for mode, secret in (("Permissive", "shop-tls"), ("Permissive", "other-tls"), ("Enforcing", "other-tls")):
        await place.run()
        assert await modes(place) == {mode}
        group = await place.get(BROKER_GROUPS, "shop-0")
        assert group["spec"]["tls"] == tls(mode, secret)
        for name in PODS_OF_PARTS:
            await place.run()
            assert (await place.get(BROKER_GROUPS, "shop-0"))["spec"]["tls"] == tls(mode, secret)
            await pod_is_made(place, name, mode, secret=secret)
    await all_are_ready(place)
    await place.run()
    assert (await place.condition("Ready"))[:2] == ("True", "AllReady")


# ---- how servers are asked


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext | None, said: bytes = b"") -> AsyncIterator[str]:
    """A server that sends this on each connection, and answers nothing; None: it speaks no TLS."""

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(said)
            await reader.read()
        writer.close()

    made = await asyncio.start_server(heard, "127.0.0.1", 0, ssl=context)
    async with made:
        yield f"127.0.0.1:{made.sockets[0].getsockname()[1]}"


def server(files: TlsFiles | None) -> contextlib.AbstractAsyncContextManager[str]:
    """One that shows this certificate; None: it speaks no TLS."""
    return listening(None if files is None else server_context(files, ClientCertificates.NONE), b"no TLS\n")


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
