"""A cluster's users and rules: the Secrets that they name, when its brokers begin to check, and what a settled one costs."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api.acl_fields import MARK
from brokergroup_operator.kube.resources import BROKER_GROUPS, ROCKETMQ_CLUSTERS, SECRETS, STATEFUL_SETS
from brokergroup_operator.reconcile.clusters import acl_secrets
from brokergroup_operator.reconcile.clusters.cluster_pass import KINDS, SETTLED_SECONDS
from brokergroup_operator.reconcile.clusters.parts import ACL_CONFIG
from brokergroup_operator.reconcile.clusters.users import MARK_ENTRY
from rocketmq_remoting.acl_protocol import UserInfo
from rocketmq_remoting.broker_protocol import TopicConfig
from tests.reconcile.cluster_place import ACL, SIGNED, Place, of_groups, secret
from tests.reconcile.world import SANDBOX
from tests.support.scripted_acl import ScriptedAcl

if TYPE_CHECKING:
    from kube_sandbox.api_server.server import SandboxApiServer

OF_SIGNED: dict[str, Any] = of_groups(**SIGNED)


async def test_users_get_the_passwords_of_the_secrets_that_they_name(place: Place) -> None:
    """A Secret that is missing or has no such key is reported by name, and holds up no other user."""
    await place.secrets("shop-password", password="planted-1")
    await place.secrets("admin", password="planted-2")
    await place.made(acl=ACL, **OF_SIGNED)
    group = place.broker_of("shop-0")
    await place.run()
    broker = place.view.brokers[group, 1]
    assert broker.users["shop"].password == "planted-1"
    assert "admin" not in broker.users
    status = await place.status()
    assert (status["users"]["summary"], status["policies"]["summary"]) == ("1/2", "1/1")
    await place.stalls("UserDiffers", "user admin: Secret", "/admin has no key secret, expected a text under it")
    for password in ("planted-3", "planted-4"):
        await place.patch(SECRETS, "admin", {"stringData": {"secret": password}})
        place.now_seconds += acl_secrets.AGAIN_SECONDS
        await place.run()
        assert broker.users["admin"].password == password
    after = [await place.get(ROCKETMQ_CLUSTERS, "shop"), await place.get(BROKER_GROUPS, "shop-0")]
    assert "planted" not in json.dumps(after)


async def test_brokers_that_serve_go_on_without_checks_until_every_password_can_be_had(place: Place) -> None:
    """A wrong name of a Secret would shut out every client."""
    await place.secrets("shop-password", password="planted-1")
    await place.made(**OF_SIGNED)
    await place.changed({"acl": ACL})
    assert not (await place.group_spec()).get("config")
    await place.stalls("UserDiffers", "acl is not put into the brokers' configuration")
    await place.secrets("admin", secret="planted-2")
    place.now_seconds += acl_secrets.AGAIN_SECONDS
    await place.run()
    assert (await place.group_spec())["config"] == ACL_CONFIG
    assert not await place.is_stalled()
    await place.delete(SECRETS, "admin")
    await place.changed({"brokerGroups": {"count": 2}})
    configs = [(await place.group_spec(name))["config"] for name in ("shop-0", "shop-1")]
    assert configs == [ACL_CONFIG] * 2, "brokers that check go on to do so"


async def test_a_new_cluster_checks_from_its_beginning(place: Place) -> None:
    """No client is served yet that a wrong Secret could shut out."""
    await place.made(acl=ACL, **OF_SIGNED)
    await place.run()
    assert (await place.group_spec())["config"] == ACL_CONFIG


async def test_the_user_of_the_brokers_key_is_left_alone_whatever_its_mark(place: Place) -> None:
    await place.secrets("key")
    await place.make(acl={}, **OF_SIGNED)
    broker = ScriptedAcl(UserInfo("brokers", "planted-key", "Super", "enable"))
    place.broker_of("shop-0", broker)
    broker.rules["brokers"] = {("Custom", MARK): MARK_ENTRY}
    await place.run()
    assert broker.taken == []
    assert "user brokers has the operator's mark" in (await place.condition("Stalled"))[2]


async def test_without_the_brokers_key_no_user_is_changed(place: Place) -> None:
    """Which user is the brokers' own is not known then."""
    await place.api.create(SECRETS, secret(place, "shop-password", password="planted-1"))
    await place.make(acl={"users": ACL["users"][:1]}, **OF_SIGNED)
    group = place.broker_of("shop-0")
    await place.run()
    assert (group, 1) not in place.view.brokers
    assert "credentialsSecretRef: Secret" in (await place.condition("Stalled"))[2]


@SANDBOX
async def test_what_a_settled_cluster_costs_in_a_minute(place: Place, sandbox: SandboxApiServer) -> None:
    """Also one that waits for a person: with a Secret that is missing, and a topic of another type."""
    await place.secrets("shop-password", password="planted-1")
    topics = [{"name": "orders", "messageType": "Fifo"}]
    await place.make(acl=ACL, topics=topics, **OF_SIGNED)
    group = place.broker_of("shop-0")
    place.view.topics[group, "orders"] = TopicConfig(topic_name="orders")
    await place.run()
    await place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)
    await place.group_is("shop-0", "True")
    requests = Counter[str]()
    sandbox.before_request = lambda request: requests.update([f"{request.method} {kind_of(request.path)}"])
    for differing in ({"acl": ACL, "topics": None}, {"acl": ACL, "topics": topics}, {"acl": None, "topics": topics}):
        await place.changed(differing)
        await place.group_is("shop-0", "True")
        await place.run()
        requests.clear()
        begin, pauses = place.now_seconds + acl_secrets.AGAIN_SECONDS, set[float | None]()
        place.now_seconds = begin
        while place.now_seconds < begin + 60:
            pause = await place.run()
            pauses.add(pause)
            place.now_seconds += pause or 60
        assert pauses == {SETTLED_SECONDS}, differing
        secrets = {} if differing["acl"] is None else {"GET secrets": 3}
        read = (*KINDS.values(), ROCKETMQ_CLUSTERS)
        assert requests == Counter({f"GET {kind.plural}": 6 for kind in read}) + Counter(secrets)
    sandbox.before_request = None


def kind_of(path: str) -> str:
    found = re.search(r"/namespaces/[^/]+/([a-z]+)", path)
    assert found is not None, path
    return found[1]


async def test_a_group_beyond_count_loses_a_user_that_is_declared_no_more(place: Place) -> None:
    """It is kept for its messages and serves on: the user could read them."""
    await place.secrets("shop-password", password="planted-1")
    await place.made(acl={"users": ACL["users"][:1]}, brokerGroups={"count": 2, "template": SIGNED})
    groups = [place.broker_of(name) for name in ("shop-0", "shop-1")]
    await place.run()
    assert [set(place.view.brokers[group, 1].users) for group in groups] == [{"shop"}] * 2
    await place.changed({"acl": {"users": []}, "brokerGroups": {"count": 1}})
    assert [set(place.view.brokers[group, 1].users) for group in groups] == [set()] * 2


async def test_acl_turns_the_brokers_checks_on_unless_the_template_says_otherwise(place: Place) -> None:
    template = SIGNED | {"config": {"authorizationEnabled": "false", "fileReservedTime": "24"}}
    await place.made(acl={}, brokerGroups={"template": template})
    config = (await place.group_spec())["config"]
    assert config == {**ACL_CONFIG, "authorizationEnabled": "false", "fileReservedTime": "24"}


@pytest.mark.parametrize("version", ["5.3.0", "5.10.0", "6.0.0", "05.03.1"])
async def test_acl_is_taken_with_a_version_that_has_it(place: Place, version: str) -> None:
    await place.made(acl={}, version=version, **OF_SIGNED)
    assert (await place.group_spec())["version"] == version
