"""The brokers of a deployment by their own words: the list of its NameServers, and the slaves of each master.

It asks neither an operator nor a controller.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.address import host_of, ip_of_family, join_address
from rocketmq_remoting.broker_protocol import HARuntimeInfoBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from tests.node.bench import CheckError, expect
from tests.node.cluster import condition
from tests.node.kubectl import get, until
from tests.node.load import addresses_of, any_certificate, cluster_request, create_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketmq_remoting.command import RemotingCommand
    from tests.node.deployments import Deployment

WHOLE_SECONDS = 180.0
ANSWER_SECONDS = 2.0
PORT = 9876


class Brokers:
    """The brokers of one deployment. `name_server`, `host:port`, is the one that is asked: the first ready one until it is set."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._tls = any_certificate() if deployment.new_authority else None
        self.name_server = ""

    def name_servers(self) -> list[str]:
        """Return the addresses of the ready NameServers."""
        return [self._name_server_of(pod) for pod in self._ready_name_servers()]

    def name_server_beside(self, node: str) -> str:
        """Return a ready one on another node than this, if there is one."""
        pods = self._ready_name_servers()
        chosen = next((pod for pod in pods if pod["spec"]["nodeName"] != node), pods[0])
        return self._name_server_of(chosen)

    def _name_server_of(self, pod: dict[str, Any]) -> str:
        return join_address(ip_of_family(",".join(ips_of(pod)), self._deployment.family), PORT)

    def _ready_name_servers(self) -> list[dict[str, Any]]:
        pods = get("pods", "-l", self._deployment.part("nameserver"))["items"]
        ready = [pod for pod in pods if condition(pod, "Ready").get("status") == "True"]
        expect(ready, f"{self._deployment.name}: no NameServer is ready")
        return ready

    def is_listed(self) -> bool:
        """Whether a ready NameServer has a broker of the struck name."""
        return any(self.listed_at(one).get(self._deployment.struck) for one in self.name_servers())

    def master(self) -> str:
        """Return the address of the struck broker name's master at the NameServer; empty without one."""
        return self._registered().get(self._deployment.struck, {}).get("0", "")

    def master_pod(self) -> dict[str, Any]:
        """Return its pod, by its address."""
        address = self.master()
        pod = pod_at(address)
        if pod is None:
            raise CheckError(f"{self._deployment.name}: no pod has the master's address {address!r}")
        return pod

    def pods_on(self, node: str) -> list[dict[str, Any]]:
        """Return the pods of the struck broker name on this node."""
        found = map(pod_at, self._registered().get(self._deployment.struck, {}).values())
        return [pod for pod in found if pod is not None and pod["spec"]["nodeName"] == node]

    def master_pod_name(self) -> str:
        """Return the name of the master's pod; empty while no pod has its address."""
        address = self.master()
        pod = pod_at(address) if address else None
        return str(pod["metadata"]["name"]) if pod else ""

    def is_back(self, before: tuple[str, int]) -> bool:
        """Whether another incarnation of a broker than this one serves as master."""
        address = self.master()
        pod = pod_at(address) if address else None
        return pod is not None and incarnation(pod) != before and self._in_sync(address) is not None

    def has_registered(self, pod: dict[str, Any]) -> bool:
        """Whether a NameServer has the struck broker name at this pod."""
        found = self._registered().get(self._deployment.struck, {}).values()
        return any(host_of(one) in ips_of(pod) for one in found)

    def make_topics_and_groups(self, topics: Iterable[str], group: str) -> None:
        """Make the topics and the consumer group at each master: the clients depend on no automatic creation.

        A Proxy in the broker's process has no settings for a group that the broker does not know, and serves none of its consumers.
        """
        for found in self._registered().values():
            for topic in topics:
                asyncio.run(create_topic(found["0"], topic, tls=self._tls))
            body = json.dumps({"groupName": group, "consumeEnable": True, "retryQueueNums": 1}).encode()
            answer = self.ask(found["0"], request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
            expect(answer is not None and answer.code == ResponseCode.SUCCESS, f"group {group} was not made: {answer}")

    def wait_until_all_have(self, topic: str) -> None:
        """Wait until every broker of the struck name has this topic: a slave copies topics now and then, and serves no other."""
        question = request(RequestCode.GET_TOPIC_CONFIG, ext_fields={"topic": topic})

        def have_it() -> bool:
            addresses = self._registered().get(self._deployment.struck, {}).values()
            answers = [self.ask(address, question) for address in addresses]
            return bool(answers) and all(one is not None and one.code == ResponseCode.SUCCESS for one in answers)

        until(f"every broker has topic {topic}", have_it, WHOLE_SECONDS, 0.5)

    def wait_until_whole(self) -> None:
        """Wait until all brokers are registered, and each master has all its slaves in sync."""
        until(f"{self._deployment.name} has all its brokers in sync", self._is_whole, WHOLE_SECONDS, 0.5)

    def _is_whole(self) -> bool:
        """Whether each NameServer has all brokers and one master of each name, which counts its slaves as in sync."""
        answers = [self.ask(one, cluster_request()) for one in self.name_servers()]
        lists = [{} if one is None else addresses_of(one.body) for one in answers]
        wanted_brokers = dict(self._deployment.brokers)
        if any({name: len(found) for name, found in one.items()} != wanted_brokers for one in lists):
            return False
        masters = [found.get("0", "") for one in lists for found in one.values()]
        wanted = self._deployment.in_sync
        counted = wanted is None or all(self._in_sync(one) == wanted for one in masters)
        return all(masters) and counted and self._deployment.is_ready()

    def _registered(self) -> dict[str, dict[str, str]]:
        """Return the addresses by broker name and id; a master has id 0. Empty while no NameServer answers."""
        if not self.name_server:
            self.name_server = self.name_servers()[0]
        return self.listed_at(self.name_server)

    def listed_at(self, name_server: str) -> dict[str, dict[str, str]]:
        """Return what this NameServer lists, as `_registered` does; empty while it does not answer."""
        answer = self.ask(name_server, cluster_request())
        return {} if answer is None else addresses_of(answer.body)

    def _in_sync(self, address: str) -> int | None:
        """Return how many slaves a master counts as in sync; None if it does not answer."""
        answer = self.ask(address, request(RequestCode.GET_BROKER_HA_STATUS)) if address else None
        if answer is None or not answer.body:
            return None
        return HARuntimeInfoBody.decode(answer.body).in_sync_slave_nums

    def ask(self, address: str, question: RemotingCommand) -> RemotingCommand | None:
        """Return the answer, or None if there is none in time."""

        async def once() -> RemotingCommand | None:
            client = RemotingClient(connect_timeout_seconds=ANSWER_SECONDS, tls=self._tls)
            try:
                return await client.invoke(address, question, timeout_seconds=ANSWER_SECONDS)
            except RemotingError:
                return None
            finally:
                await client.close()

        return asyncio.run(once())


def pod_at(address: str) -> dict[str, Any] | None:
    """Return the pod of this `host:port`; None while there is none."""
    pods = [pod for pod in get("pods")["items"] if host_of(address) in ips_of(pod)]
    return pods[0] if len(pods) == 1 else None


def ips_of(pod: dict[str, Any]) -> list[str]:
    """Return its addresses, of both families on these nodes; none before it has one."""
    return [one["ip"] for one in pod["status"].get("podIPs", [])]


def incarnation(pod: dict[str, Any]) -> tuple[str, int]:
    """Return what changes with each start of a pod's containers: its uid, and how often they were started again."""
    return pod["metadata"]["uid"], sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))
