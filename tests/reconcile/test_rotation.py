"""Another authority for a group and for a whole cluster, by spec.tls.trustBundleRef: what is given, held and reported."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_steps import Made, made_of, trust_file
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, PODS
from brokergroup_operator.kubectl.explain import explanation
from tests.reconcile import world as w
from tests.reconcile.cluster_place import Place
from tests.reconcile.test_tls import CLUSTER, JAVA, PODS_OF_PARTS, SERVED, all_are_ready, modes, pod_is_made, tls
from tests.reconcile.trust_bundles import BUNDLE, Shown, bundle_is, files, given, group, pem, place, stored, trusted

if TYPE_CHECKING:
    from pathlib import Path

    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.reconcile.world import World

__all__ = ["group", "pem", "place"]  # fixtures
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def window(day: str) -> dict[str, object]:
    return {"days": [day], "start": "02:00", "durationMinutes": 60}


# ---- a group


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


async def test_a_change_that_goes_on_beside_a_silent_server_is_not_reported_as_held(
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


async def test_a_group_without_tls_whose_jvm_arguments_enforce_it_is_on_no_way(
    sandbox: SandboxApiServer, sandbox_world: World
) -> None:
    """docs/concepts/security.md names such arguments for groups without spec.tls."""
    sandbox_world.settings = replace(w.SETTINGS, controller_tls=True)
    await sandbox_world.bring_up(sandbox, **JAVA, jvm={"extraArguments": ["-Dtls.server.mode=enforcing"]})
    assert "TlsChanging" not in await sandbox_world.conditions()


# ---- a cluster


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
