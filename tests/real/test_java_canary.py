"""The canary at unmodified Java 5.5.0 brokers with ACL in force, which make no topics by themselves.

A broker makes its inner client's user, as which it signs itself, a superuser when it first starts: so the canary makes its topic,
and a failover has the first write. An administrator may delete that user, or let him do less: each right that is lacking is told
once, and no failover waits for a write that is refused.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.peers.broker_calls import BrokerCalls
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.controller.upkeep.recovery_watch import TOPIC
from brokergroup_operator.observe.events import EventObserver
from brokergroup_operator.observe.observer import Observer, ObserverGroup
from brokergroup_operator.observe.timeline import FailoverTimeline, Step
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from tests.observe.test_events import Sink
from tests.real.test_java_security import ADMIN, GROUP, acl_of
from tests.support.java_rig import eventually, in_sync, record_of
from tests.support.one_request import answer_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rocketmq_remoting.command import RemotingCommand
    from tests.real.parts.java import JavaProgram
    from tests.support.java_rig import JavaRig

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(420)]

# RocketMQ's requests to keep users and their rights, which only tools send.
AUTH_CREATE_USER, AUTH_DELETE_USER, AUTH_CREATE_ACL, AUTH_UPDATE_ACL = 3001, 3003, 3006, 3007
# Longer than any wait here: a closed incident waits for no further step.
NEVER_SECONDS = 3600.0
_AUTHORIZATION = "org.apache.rocketmq.auth.authorization.provider"
NO_TOPIC_UNASKED = {"autoCreateTopicEnable": "false"}
AUTHORIZED = {
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTHORIZATION}.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTHORIZATION}.LocalAuthorizationMetadataProvider",
}


class Closed(Observer):
    """The closed incidents, and the results of the canary's messages."""

    def __init__(self) -> None:
        self.incidents: list[FailoverTimeline] = []
        self.sent: list[bool] = []

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self.incidents.append(timeline)

    def canary_sent(self, key: object, acknowledged: bool, duration_seconds: float) -> None:
        self.sent.append(acknowledged)


class Story:
    """A plane with a canary, what it told, and the Java brokers of its one group."""

    def __init__(self, rig: JavaRig, name_server: str) -> None:
        self.rig = rig
        self.closed, self.sink = Closed(), Sink()
        self.plane = ControllerPlane(
            store=MemoryRecordStore(),
            directory=FixedDirectory(
                settings=ControllerSettings(),
                name_servers=(name_server,),
                heartbeat_timeout_seconds=5.0,
                credentials=GROUP,
                canary=True,
            ),
            settings=PlaneSettings(
                listen_host="127.0.0.1",
                listen_port=0,
                recovery_watch_seconds=NEVER_SECONDS,
                incident_deadline_seconds=NEVER_SECONDS,
            ),
            observer=ObserverGroup([self.closed, EventObserver(self.sink)]),
        )

    def start_broker(self, name: str, **options: str | int) -> JavaProgram:
        acl = acl_of(GROUP) | AUTHORIZED | NO_TOPIC_UNASKED | options
        return self.rig.start_broker(name, controllers=self.plane.address, **acl)

    def told(self) -> list[str]:
        """Return the Events about the canary."""
        return [event.message for event in self.sink.events if event.reason.startswith("Canary")]

    async def kill_master(self) -> tuple[FailoverTimeline, str]:
        """Its incident, when it is closed, and the new master's address."""
        before = record_of(self.plane)
        assert before.master_broker_id is not None
        address = before.replicas[before.master_broker_id].address
        self.rig.kill_at(address)
        [incident] = await eventually(lambda: self.closed.incidents, "the incident to be closed")
        after = record_of(self.plane)
        assert after.granted_master_id not in (None, before.master_broker_id)
        return incident, after.replicas[after.granted_master_id or 0].address


@asynccontextmanager
async def story_of(rig: JavaRig) -> AsyncIterator[Story]:
    story = Story(rig, rig.start_name_server().address)
    await story.plane.start()
    try:
        yield story
    finally:
        await story.plane.stop()


async def test_it_makes_its_topic_and_writes_as_the_groups_user(rig: JavaRig) -> None:
    """It writes as a superuser, which needs no set-up."""
    async with story_of(rig) as story:
        for name in ("one", "two"):
            story.start_broker(name)
        await eventually(lambda: in_sync(story.plane, 2), "two brokers with ACL in sync")
        await eventually(lambda: story.closed.sent[-3:] == [True] * 3, "acknowledged messages")
        incident, address = await story.kill_master()
        assert Step.FIRST_ACK in incident.steps
        assert story.told() == []
        client = RemotingClient()
        metadata = await BrokerCalls(client, PlaneSettings()).signed_by(GROUP).metadata(address)
        await client.close()
        assert TOPIC in metadata.topics


async def test_a_user_who_may_not_is_told_once_for_each_right_and_no_failover_waits(rig: JavaRig) -> None:
    admin = json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key})
    async with story_of(rig) as story:
        brokers = [story.start_broker(name, initAuthenticationUser=admin) for name in ("one", "two")]
        await eventually(lambda: in_sync(story.plane, 2), "two brokers in sync")
        await eventually(lambda: story.closed.sent[-1:] == [True], "acknowledged messages")
        for broker in brokers:
            await by_admin(broker.address, request(AUTH_DELETE_USER, ext_fields={"username": GROUP.access_key}))
        [unknown] = await eventually(story.told, "the canary to be refused")
        for part in (f"user {GROUP.access_key!r}", f"Pub on Topic:{TOPIC}", "is not found"):
            assert part in unknown
        for broker in brokers:
            await by_admin(broker.address, new_user())
            await by_admin(broker.address, rights(AUTH_CREATE_ACL, "Cluster:*", "All"))
        incident, address = await story.kill_master()
        assert Step.IN_SYNC in incident.steps
        assert Step.FIRST_ACK not in incident.steps
        assert story.told() == [unknown], "the same right is missing: no new Event"

        await by_admin(address, request(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": TOPIC}))
        await by_admin(address, rights(AUTH_UPDATE_ACL, f"Topic:{TOPIC}", "Pub"))
        _, may_not_make = await eventually(
            lambda: told if len(told := story.told()) > 1 else None, "a refusal to make the topic"
        )
        for part in (address, f"Create on Topic:{TOPIC}", f"User:{GROUP.access_key} has no permission"):
            assert part in may_not_make
        await by_admin(address, rights(AUTH_UPDATE_ACL, f"Topic:{TOPIC}", "Pub", "Create"))
        await eventually(lambda: story.closed.sent[-3:] == [True] * 3, "acknowledged messages")
        reasons = [reason for reason in story.sink.reasons if reason.startswith("Canary")]
        assert reasons == ["CanaryRefused", "CanaryRefused", "CanaryAcknowledged"]
        assert GROUP.secret_key not in "".join(story.told())


def new_user() -> RemotingCommand:
    """The group's, without any right."""
    user = {"username": GROUP.access_key, "password": GROUP.secret_key, "userType": "Normal"}
    fields = {"username": GROUP.access_key}
    return request(AUTH_CREATE_USER, ext_fields=fields, body=json.dumps(user).encode())


def rights(code: int, resource: str, *actions: str) -> RemotingCommand:
    """Grant rights to the group's user, as ``mqadmin createAcl`` and ``updateAcl`` do."""
    subject = f"User:{GROUP.access_key}"
    entry: dict[str, Any] = {"resource": resource, "actions": list(actions), "decision": "Allow"}
    policies = [{"policyType": "Custom", "entries": [entry]}]
    body = json.dumps({"subject": subject, "policies": policies}).encode()
    return request(code, ext_fields={"subject": subject}, body=body)


async def by_admin(address: str, command: RemotingCommand) -> None:
    answer = await answer_to(address, command, signed_as=ADMIN, timeout_seconds=30)
    assert answer.code == 0, answer
