"""Declared users and policies of ACL 2.0 at unmodified Java 5.5.0 brokers, through a failover and a rotated password."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from brokergroup_operator.api.acl_fields import MARK, AclSpec
from brokergroup_operator.api.brokergroup import Signature
from brokergroup_operator.controller.settings import SecuritySettings
from brokergroup_operator.demo.client import numbered_message
from brokergroup_operator.observe.group_view import BrokerUnreachableError
from brokergroup_operator.reconcile.clusters.parts import ACL_CONFIG
from brokergroup_operator.reconcile.clusters.users import UserKeeper, UsersStanding, wanted_users
from rocketmq_remoting.acl_protocol import UserInfo, create_user
from rocketmq_remoting.broker_protocol import TopicConfig
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.signature import Credentials
from tests.real.test_java_security import GROUP, plane_with
from tests.support.java_rig import KEY, address_of, eventually, in_sync, record_of
from tests.support.one_request import answer_to

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from tests.support.java_rig import JavaRig

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(420)]

# As the operator renders it; and the group's key, as a broker's start puts it in from the Secret.
BROKER: Final[dict[str, Any]] = {
    **ACL_CONFIG,
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{GROUP.access_key}","secretKey":"{GROUP.secret_key}"}}',
}
SHOP = Credentials(access_key="shop", secret_key="planted-shop-password-1")
ROTATED = Credentials(access_key="shop", secret_key="planted-shop-password-2")
PERSON = UserInfo("person", "planted-persons-password", "Normal", "enable")
USER = {"name": "shop", "passwordSecretRef": {"name": "shop"}}
MAY_SEND = {"subject": "User:shop", "resource": "Topic:orders", "actions": ["Pub"], "sourceIps": ["127.0.0.0/8"]}
DECLARED: Final = msgspec.convert({"users": [USER], "policies": [MAY_SEND]}, AclSpec)
WHOLE: Final = UsersStanding(users=1, ready_users=1, policies=1, ready_policies=1)


class Cluster:
    """The one group as a pass over its RocketMQCluster sees it. `keeper` is one operator process's."""

    def __init__(self, plane: ControllerPlane) -> None:
        self.plane = plane
        self.keeper = UserKeeper(plane, time.monotonic)

    async def keep(self, spec: AclSpec, password: str) -> UsersStanding:
        wanted = wanted_users(spec, {"shop": password})
        return await self.keeper.keep(
            KEY.namespace, wanted, {KEY.name: "uid"}, counted={KEY.name}, own=GROUP.access_key
        )

    async def is_whole(self, password: str) -> bool:
        return await self.keep(DECLARED, password) == WHOLE

    async def make_topics(self) -> None:
        async def are_made() -> bool:
            with suppress(BrokerUnreachableError):
                for name in ("orders", "payments"):
                    await self.plane.put_topic(KEY, TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1))
                return True
            return False

        # A broker that has just become master may not answer within the plane's second.
        await eventually(are_made, "the master to take topics")

    async def sent(self, topic: str, credentials: Credentials | None, *, broker_id: int | None = None) -> int:
        """The code that the master, or this broker, answers to a message of this caller."""
        message = numbered_message("key", broker_name=KEY.name, topic=topic, queue_id=0, queues=1)
        address = address_of(self.plane, broker_id or record_of(self.plane).master_broker_id or 0)
        return (await answer_to(address, message, signed_as=credentials)).code

    async def allows(self, allowed: Credentials) -> None:
        """One topic for this user; nothing else, and nothing for others."""

        async def is_sent() -> bool:
            code = await self.sent("orders", allowed)
            assert code != ResponseCode.NO_PERMISSION
            return code == ResponseCode.SUCCESS

        # A master refuses a send until it has the new SyncStateSet itself.
        await eventually(is_sent, "the master to take sends")
        wrong = Credentials(access_key="shop", secret_key="guessed")
        for topic, caller in (("payments", allowed), ("orders", wrong), ("orders", None)):
            assert await self.sent(topic, caller) == ResponseCode.NO_PERMISSION, (topic, caller)


async def test_a_declared_user_may_send_to_one_topic_through_a_failover_and_a_rotation(
    rig: JavaRig, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    name_server = rig.start_name_server().address
    group: dict[str, Any] = {"signature": Signature.REQUIRED, "credentials": GROUP, "open_groups": False}
    async with plane_with(SecuritySettings(), name_server=name_server, **group) as plane:
        await rig.start_pair(plane, autoCreateTopicEnable="false", **BROKER)
        cluster = Cluster(plane)
        await cluster.make_topics()
        await eventually(lambda: cluster.is_whole(SHOP.secret_key), "both have the user", every_seconds=0.2)
        await check_every_member_has_it(plane)
        await cluster.allows(SHOP)

        killed = await check_a_failover(rig, cluster)
        await check_a_rotation(rig, cluster, killed)
        await check_a_removal(cluster)
        everything = caplog.text + "".join(capsys.readouterr())
    for secret in (SHOP.secret_key, ROTATED.secret_key, str(PERSON.password), GROUP.secret_key):
        assert secret not in everything


async def check_every_member_has_it(plane: ControllerPlane) -> None:
    for broker_id in (1, 2):
        found = await plane.access(KEY, broker_id)
        assert found.users["shop"] == UserInfo("shop", SHOP.secret_key, "Normal", "enable")
        assert found.users[GROUP.access_key].user_type == "Super", "the broker made it from its own key"
        resources = [entry.resource for policy in found.rules["shop"] for entry in policy.entries or ()]
        assert sorted(resources) == sorted((MARK, "Topic:orders"))


async def check_a_failover(rig: JavaRig, cluster: Cluster) -> str:
    """The new master has the user already: no pass of the keeper runs between its election and the first message."""
    killed = await rig.kill_master(cluster.plane)
    await eventually(lambda: in_sync(cluster.plane, 1), "the other is master")
    await cluster.make_topics()
    await cluster.allows(SHOP)
    return killed


async def check_a_rotation(rig: JavaRig, cluster: Cluster, dead: str) -> None:
    """The living one takes the new password at once, without a restart; the other when it is back."""
    standing = await cluster.keep(DECLARED, ROTATED.secret_key)
    assert standing.ready_users == 0
    assert "it is not heard" in " ".join(standing.pending)
    await cluster.allows(ROTATED)
    assert await cluster.sent("orders", SHOP) == ResponseCode.NO_PERMISSION, "the old password"

    rig.start_broker(dead, controllers=cluster.plane.address, autoCreateTopicEnable="false", **BROKER)
    await eventually(lambda: in_sync(cluster.plane, 2), "two brokers in sync again")

    await eventually(lambda: cluster.is_whole(ROTATED.secret_key), "both have the new password", every_seconds=0.2)
    for broker_id in (1, 2):
        assert (await cluster.plane.access(KEY, broker_id)).users["shop"].password == ROTATED.secret_key


async def check_a_removal(cluster: Cluster) -> None:
    """What the operator made goes, and nothing else."""
    for broker_id in (1, 2):
        await cluster.plane.change_access(KEY, broker_id, [create_user(PERSON)])
    assert await cluster.keep(AclSpec(), ROTATED.secret_key) == UsersStanding()
    for broker_id in (1, 2):
        assert set((await cluster.plane.access(KEY, broker_id)).users) == {"person", GROUP.access_key}
    assert await cluster.sent("orders", ROTATED) == ResponseCode.NO_PERMISSION
