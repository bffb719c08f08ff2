"""The fence kills the pod at a silent master's address: by the pod's deletion and by the signed order to the fence inside it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.controller.change import fencing
from brokergroup_operator.controller.change.fencing import FenceOutcome, KubernetesFencer
from brokergroup_operator.controller.directory.pods import PodPlace
from brokergroup_operator.fence.datagrams import CONFIRMATION, ORDER, KeyFile, KillOrders, Message, open_sealed, seal
from brokergroup_operator.kube.answers import decode
from brokergroup_operator.kube.errors import (
    ApiError,
    ApiUnavailableError,
    GoneError,
    NotFoundError,
    OutcomeUnknownError,
    error_from_status,
)
from brokergroup_operator.kube.resources import NODES, PODS
from tests.controller.cluster import ADDRESS, BINDING, HOST, RUNNING, TERMINATED, create_pod, is_dying, set_status
from tests.controller.conftest import group_of
from tests.controller.world import Fencer, World
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from pathlib import Path

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi, WatchEvent


async def test_a_pod_of_the_right_name_at_another_address_is_left_alone(api: KubernetesApi) -> None:
    """`orders-4` exists too, and is another broker's process (safety rule 8)."""
    await create_pod(api, "orders-4", address="127.64.1.4")
    await create_pod(api, "orders-1")
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 4, ADDRESS, deadline_seconds=20.0))
    await eventually(lambda: is_dying(api, "orders-1"), what="the pod to be deleted")
    await set_status(api, "orders-1", state=TERMINATED)
    outcome = await fencing
    assert outcome.confirmed
    assert "orders-1" in outcome.how
    assert not await is_dying(api, "orders-4")


async def test_nobody_at_the_address_confirms_nothing(api: KubernetesApi) -> None:
    """Safety rule 8: a pod of the right name at another address may be the innocent successor of the silent one."""
    fencer = KubernetesFencer(api)
    outcomes = [await fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=5.0)]
    for number in (1, 4):
        await create_pod(api, f"orders-{number}", address=f"127.64.1.{number + 1}")
        outcomes.append(await fencer.fence(BINDING, number, ADDRESS, deadline_seconds=5.0))
        assert not await is_dying(api, f"orders-{number}")
    assert [one.confirmed for one in outcomes] == [False] * 3


async def test_the_next_pod_at_the_same_service_is_not_killed_for_the_one_before_it(api: KubernetesApi) -> None:
    """The new pod's start proves nothing about the old process: a pod deleted by force may still run on a node that is cut off."""
    known = "10.96.0.1:10911"
    await create_pod(api, "orders-1", address="127.64.1.9", known_by=known)
    there = replace(BINDING, translated=True, places={"orders-1": PodPlace(ip="127.64.1.9", address=known)})
    before = there.process_address(known, "127.64.1.1")
    assert before is not None
    for address in (before, known):
        outcome = await KubernetesFencer(api).fence(there, 1, address, deadline_seconds=5.0)
        assert outcome.untouched
        assert not outcome.confirmed
    assert not await is_dying(api, "orders-1")
    own = there.process_address(known, "127.64.1.9")
    assert own is not None
    fencing = asyncio.create_task(KubernetesFencer(api).fence(there, 1, own, deadline_seconds=20.0))
    await eventually(lambda: is_dying(api, "orders-1"), what="the pod of that process to be deleted")
    await set_status(api, "orders-1", address="127.64.1.9", state=TERMINATED)
    assert (await fencing).confirmed


async def test_a_master_that_was_never_heard_here_names_no_pod_that_could_be_killed(group: World) -> None:
    fencer = Fencer()
    plane, (first, *_) = await group.three_under(fencer=fencer)
    group.directory.wish(translated=True)
    await eventually(lambda: group_of(plane).binding.translated, what="the plane to know of the Services")
    engine, known = plane._failover, group_of(plane)
    assert (await engine._kill(known, 1, "10.96.0.1:10911")).confirmed
    assert fencer.asked == [first.address.rpartition(":")[0] + ":10911"], (
        "the fence goes to the heartbeats' source address, not to the Service"
    )
    known.addresses.channel_hosts.clear()
    outcome = await engine._kill(known, 1, "10.96.0.1:10911")
    assert outcome.untouched
    assert not outcome.confirmed
    assert len(fencer.asked) == 1


async def test_the_fence_kills_the_pod_and_waits_for_its_end(api: KubernetesApi) -> None:
    await create_pod(api)
    fencer = KubernetesFencer(api)
    fencing = asyncio.create_task(fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=10.0))
    await eventually(lambda: is_dying(api), what="the pod to be deleted")
    dying = (await api.get(PODS, "orders-1", namespace="default"))["metadata"]
    assert names.FINALIZER_FENCE in dying["finalizers"]
    assert dying["deletionGracePeriodSeconds"] == 0
    assert not fencing.done()
    await set_status(api, "orders-1", state=TERMINATED)
    assert (await fencing).confirmed
    await fencer.close()
    with pytest.raises(NotFoundError):
        await api.get(PODS, "orders-1", namespace="default")


@pytest.mark.parametrize(
    ("after_seconds", "told"),
    [(0, "pod orders-1 ran until it was deleted"), (-5, "containers of pod orders-1 terminated")],
)
async def test_a_fence_tells_whether_the_silent_one_still_ran(
    api: KubernetesApi, after_seconds: int, told: str
) -> None:
    """The process's end may be reported late: it ran until the fence only if the deletion ended it."""
    await create_pod(api)
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=10.0))
    await eventually(lambda: is_dying(api), what="the pod to be deleted")
    dying = (await api.get(PODS, "orders-1", namespace="default"))["metadata"]
    ended = dt.datetime.fromisoformat(dying["deletionTimestamp"]) + dt.timedelta(seconds=after_seconds)
    finished = ended.isoformat().replace("+00:00", "Z")
    await set_status(api, "orders-1", state={"terminated": {"exitCode": 137, "finishedAt": finished}})
    outcome = await fencing
    assert (outcome.confirmed, outcome.how) == (True, told)


@dataclass
class Unseen:
    """A fence that has deleted `orders-1` and, until `look` is set, does not look at it again."""

    pod: JsonObject
    fencer: KubernetesFencer
    fencing: asyncio.Task[FenceOutcome]
    look: asyncio.Event


@pytest.fixture
async def unseen(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> Unseen:
    """The pod's end takes place between two looks, on a node that is there."""
    await api.create(NODES, {"metadata": {"name": "node-1"}})
    pod, fencer = await create_pod(api, node="node-1"), KubernetesFencer(api)
    get, delete, look, deleted = api.get, api.delete, asyncio.Event(), asyncio.Event()
    look.set()

    async def later(*arguments: Any, **named: Any) -> Any:
        await look.wait()
        return await get(*arguments, **named)

    async def hold(*arguments: Any, **named: Any) -> Any:
        look.clear()
        answer = await delete(*arguments, **named)
        deleted.set()
        return answer

    monkeypatch.setattr(api, "get", later)
    monkeypatch.setattr(api, "delete", hold)
    fencing = asyncio.create_task(fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=60.0))
    await deleted.wait()
    return Unseen(pod, fencer, fencing, look)


async def let_go(api: KubernetesApi) -> None:
    await api.patch(PODS, "orders-1", {"metadata": {"finalizers": []}}, namespace="default")


@pytest.mark.parametrize("returns", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize(("state", "confirmed"), [(RUNNING, False), (TERMINATED, True)], ids=["running", "terminated"])
@pytest.mark.parametrize("phase", ["Running", "Failed"])
async def test_a_pod_that_goes_between_two_looks_is_dead_only_if_its_kubelet_reported_it(
    api: KubernetesApi, unseen: Unseen, phase: str, state: dict[str, Any], confirmed: bool, returns: bool
) -> None:
    """A person takes the finalizer off; or PodGC calls it Failed, since its node is gone, and the reconcile plane takes it off."""
    await set_status(api, "orders-1", state=state)
    await api.patch(PODS, "orders-1", {"status": {"phase": phase}}, namespace="default", subresource="status")
    await let_go(api)
    if returns:
        await create_pod(api, node="node-2")
    unseen.look.set()
    outcome = await unseen.fencing
    assert outcome.confirmed == confirmed
    assert ("terminated" in outcome.how) == confirmed


async def test_a_leaving_pod_that_is_deleted_by_force_confirms_nothing(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is already being deleted takes no finalizer, so nothing keeps its object."""
    await api.create(NODES, {"metadata": {"name": "node-1"}})
    await create_pod(api, node="node-1")
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=30)
    deleted, delete = asyncio.Event(), api.delete

    async def tell(*arguments: Any, **named: Any) -> Any:
        answer = await delete(*arguments, **named)
        deleted.set()
        return answer

    monkeypatch.setattr(api, "delete", tell)
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=3.0))
    await deleted.wait()
    await delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
    assert not (await fencing).confirmed


UNAVAILABLE = ApiUnavailableError("etcd has no leader", status=503)


@pytest.mark.parametrize("first", [UNAVAILABLE, None], ids=["503", "hangs"])
async def test_an_end_whose_events_are_not_read_at_first_is_read_again(
    api: KubernetesApi, unseen: Unseen, monkeypatch: pytest.MonkeyPatch, first: ApiError | None
) -> None:
    asked = watch_fails(api, monkeypatch, first, times=1)
    await set_status(api, "orders-1", state=TERMINATED)
    await let_go(api)
    unseen.look.set()
    assert (await unseen.fencing).confirmed
    assert len(asked) == 2


@pytest.mark.parametrize("error", [UNAVAILABLE, ApiError("forbidden", status=403, reason="Forbidden")], ids=str)
async def test_an_end_whose_events_are_never_read_confirms_nothing(
    api: KubernetesApi, unseen: Unseen, monkeypatch: pytest.MonkeyPatch, error: ApiError
) -> None:
    asked = watch_fails(api, monkeypatch, error, times=1000)
    await set_status(api, "orders-1", state=TERMINATED)
    await let_go(api)
    unseen.look.set()
    await eventually(lambda: len(asked) > 2, what="it to ask again and again")
    assert not unseen.fencing.done()
    unseen.fencing.cancel()
    await asyncio.gather(unseen.fencing, return_exceptions=True)


async def test_an_end_whose_events_are_forgotten_confirms_nothing(
    api: KubernetesApi, unseen: Unseen, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_fails(api, monkeypatch, GoneError("too old resource version", status=410), times=1)
    await set_status(api, "orders-1", state=TERMINATED)
    await let_go(api)
    unseen.look.set()
    assert not (await unseen.fencing).confirmed


def watch_fails(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, error: ApiError | None, *, times: int
) -> list[dict[str, Any]]:
    """Let the first watches fail with this error, or hang without one. Return the list of all that were asked for."""
    watch, asked = api.watch, list[dict[str, Any]]()

    async def answer(*arguments: Any, **named: Any) -> AsyncGenerator[WatchEvent]:
        asked.append(named)
        if len(asked) <= times:
            await (asyncio.Event().wait() if error is None else asyncio.sleep(0))
            raise error or AssertionError("it hangs")
        async with aclosing(watch(*arguments, **named)) as events:
            async for event in events:
                yield event

    monkeypatch.setattr(api, "watch", answer)
    return asked


async def test_the_events_are_read_from_the_deletion_on(
    api: KubernetesApi, unseen: Unseen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server may have forgotten those since the pod was last written, which may be days ago."""
    asked = watch_fails(api, monkeypatch, None, times=0)
    await let_go(api)
    unseen.look.set()
    await unseen.fencing
    assert asked[0]["resource_version"] != unseen.pod["metadata"]["resourceVersion"]


@pytest.mark.parametrize("ends", ["after its deletion", "before its deletion"])
async def test_a_pod_that_ends_around_a_deletion_whose_answer_is_lost_is_dead(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The fence saw the pod at its address, so the pod's last state counts, whichever client deleted it."""
    await create_pod(api)
    delete = api.delete
    if ends == "before its deletion":
        await delete(PODS, "orders-1", namespace="default", grace_period_seconds=30)

    async def lost(*arguments: Any, **named: Any) -> Any:
        if ends == "after its deletion":
            await delete(*arguments, **named)
            await set_status(api, "orders-1", state=TERMINATED)
            await let_go(api)
            raise OutcomeUnknownError("timeout")
        await set_status(api, "orders-1", state=TERMINATED)
        await delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
        return await delete(*arguments, **named)

    monkeypatch.setattr(api, "delete", lost)
    assert (await KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=60.0)).confirmed


async def test_the_release_of_a_pod_that_is_gone_leaves_the_next_pod_of_its_name_alone(
    api: KubernetesApi, unseen: Unseen
) -> None:
    await set_status(api, "orders-1", state=TERMINATED)
    await let_go(api)
    await create_pod(api, metadata={"finalizers": [names.FINALIZER_FENCE]})
    unseen.look.set()
    assert (await unseen.fencing).confirmed
    await unseen.fencer.close()
    found = await api.get(PODS, "orders-1", namespace="default")
    assert found["metadata"]["finalizers"] == [names.FINALIZER_FENCE]


async def test_a_404_from_in_front_of_the_api_server_confirms_no_death(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer whose backend restarts answers a page; the next request reaches an API server again."""
    await create_pod(api, node="node-1")
    request, pages = api._request, 0

    async def without_backend(method: str, path: str, **named: Any) -> Any:
        nonlocal pages
        if method == "GET" and path.endswith("/pods/orders-1"):
            pages += 1
            raise error_from_status(f"{method} {path}", 404, decode(b"default backend - 404"), write=False)
        return await request(method, path, **named)

    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=2.0))
    await eventually(lambda: is_dying(api), what="the pod to be deleted")
    monkeypatch.setattr(api, "_request", without_backend)
    assert not (await fencing).confirmed
    assert pages


async def test_a_fence_that_nobody_confirms_ends_at_its_deadline(api: KubernetesApi) -> None:
    await create_pod(api)
    outcome = await KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=0.3)
    assert not outcome.confirmed
    assert "not reported dead" in outcome.how


@pytest.mark.parametrize("error", [ApiError("not reachable"), ApiError("forbidden", status=403)], ids=str)
async def test_a_fence_that_the_api_refuses_ends_at_its_deadline(error: ApiError) -> None:
    class NoApi:
        async def get(self, *_: object, **__: object) -> NoReturn:
            raise error

    outcome = await KubernetesFencer(cast("KubernetesApi", NoApi())).fence(BINDING, 1, ADDRESS, deadline_seconds=0.3)
    assert not outcome.confirmed
    assert "not reported dead" in outcome.how


# ---- The pod's deletion and the signed order to the fence inside it, at the same time: the first confirmation counts.

# The port follows from the broker's address, so two of these tests at one time would take it from each other.
pytestmark = pytest.mark.xdist_group("the fence's port")

KEYS = FenceKeys(b"r" * 32)
GROUP_UID = "group-uid"
PORT = 10913


class PodsFence(asyncio.DatagramProtocol):
    """The fence at the pod's port; `answers` sets its answer."""

    def __init__(self, answers: Callable[[bytes], bytes | None]) -> None:
        self.answers = answers
        self.heard: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.heard.append(data)
        reply = self.answers(data)
        if reply is not None:
            self.transport.sendto(reply, addr)


@contextlib.asynccontextmanager
async def listening(answers: Callable[[bytes], bytes | None]) -> AsyncIterator[PodsFence]:
    transport, fence = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: PodsFence(answers), local_addr=(HOST, PORT), family=socket.AF_INET
    )
    try:
        yield fence
    finally:
        transport.close()


async def make_pod(api: KubernetesApi, *, secret: str | None = None) -> str:
    """Create a reduced form of the pod that the reconcile plane renders; return its uid."""
    ports = [{"name": names.PORT_FENCE, "containerPort": PORT, "protocol": "UDP"}]
    mounted = {"secretName": secret or KEYS.secret_name("orders", GROUP_UID)}
    owner = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "name": "orders", "uid": GROUP_UID}
    await create_pod(
        api,
        fence={"ports": ports},
        metadata={"ownerReferences": [owner]},
        spec={"volumes": [{"name": names.VOLUME_FENCE_KEY, "secret": mounted}]},
    )
    uid: str = (await api.get(PODS, "orders-1", namespace="default"))["metadata"]["uid"]
    return uid


def fencing_of(api: KubernetesApi) -> asyncio.Task[FenceOutcome]:
    return asyncio.create_task(KubernetesFencer(api, KEYS).fence(BINDING, 1, ADDRESS, deadline_seconds=20.0))


def real_fence(folder: Path, pod_uid: str, *, started: float | None = 7.0) -> Callable[[bytes], bytes | None]:
    (folder / "key").write_text(KEYS.key_of(GROUP_UID).hex(), encoding="ascii")
    orders = KillOrders(pod_uid, KeyFile(folder / "key"), lambda: started)
    return lambda datagram: orders.answer(datagram, asyncio.get_running_loop().time())


async def test_the_fences_signed_word_confirms_before_any_kubelet_and_the_pod_goes_all_the_same(
    api: KubernetesApi, tmp_path: Path
) -> None:
    uid = await make_pod(api)
    fencer = KubernetesFencer(api, KEYS)
    async with listening(real_fence(tmp_path, uid)):
        outcome = await fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=20.0)
    assert outcome.confirmed
    assert "signed" in outcome.how
    await eventually(lambda: is_dying(api), what="the pod to be deleted")
    await fencer.close()


async def _fails(_: object) -> str | None:
    raise ValueError("a port that is none")


@pytest.mark.parametrize("fence", ["absent", "mute", "another root's", "not dead", "the order fails"])
async def test_a_fence_that_proves_nothing_leaves_it_to_the_kubelet(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fence: str
) -> None:
    uid = await make_pod(api, secret="orders-fence-00000000" if fence == "another root's" else None)
    answers = {"not dead": real_fence(tmp_path, uid, started=None)}.get(fence, lambda _: None)
    if fence == "the order fails":
        monkeypatch.setattr(fencing, "confirmed_kill", _fails)
    async with contextlib.AsyncExitStack() as stack:
        heard = None if fence == "absent" else await stack.enter_async_context(listening(answers))
        fenced = fencing_of(api)
        await eventually(lambda: is_dying(api), what="the pod to be deleted")
        assert not fenced.done()
        await set_status(api, "orders-1", state=TERMINATED)
        outcome = await fenced
        assert outcome.confirmed
        assert "signed" not in outcome.how
        if fence == "another root's":
            assert heard is not None
            assert not heard.heard, "a fence with another key gets no question"


async def test_a_fence_may_still_confirm_when_the_pods_object_is_gone_without_a_report(
    api: KubernetesApi, tmp_path: Path
) -> None:
    """A person deletes the leaving pod by force while its fence wakes."""
    honest, awake = real_fence(tmp_path, await make_pod(api)), asyncio.Event()
    fencer = KubernetesFencer(api, KEYS)
    async with listening(lambda datagram: honest(datagram) if awake.is_set() else None) as fence:
        fencing = asyncio.create_task(fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=60.0))
        await eventually(lambda: fence.heard, what="an order")
        await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
        with contextlib.suppress(
            NotFoundError
        ):  # it has the finalizer unless it was leaving before: its owner is not there
            await let_go(api)
        with pytest.raises(NotFoundError):
            await api.get(PODS, "orders-1", namespace="default")
        awake.set()
        assert (await fencing).confirmed
    await fencer.close()


async def test_a_forged_replayed_or_other_pods_confirmation_proves_nothing(api: KubernetesApi, tmp_path: Path) -> None:
    """An attacker in the network sees every datagram and may answer first, but has no key."""
    uid = await make_pod(api)
    key, honest = KEYS.key_of(GROUP_UID), real_fence(tmp_path, uid)
    overheard = seal(Message(CONFIRMATION, b"n" * 16, b"c" * 16, 7.0), key, uid)

    def answers(datagram: bytes) -> bytes | None:
        said = open_sealed(datagram, key, uid)
        if said is None or said.tag != ORDER:
            return honest(datagram)
        forged = Message(CONFIRMATION, said.nonce, said.challenge, 7.0)
        sent.append(said)
        return [
            seal(forged, b"x" * 32, uid),
            seal(forged, key, "another-pod"),
            overheard,
            seal(forged._replace(challenge=b"c" * 16), key, uid),
            seal(forged._replace(nonce=b"n" * 16), key, uid),
        ][len(sent) % 5]

    sent: list[Message] = []
    async with listening(answers):
        fenced = fencing_of(api)
        await eventually(lambda: len(sent) >= 10, what="ten orders")
        assert not fenced.done()
        await set_status(api, "orders-1", state=TERMINATED)
        assert "signed" not in (await fenced).how


async def test_a_pod_at_another_address_is_ordered_nothing(api: KubernetesApi, tmp_path: Path) -> None:
    """Safety rule 8: it may be the innocent successor of the silent one."""
    uid = await make_pod(api)
    async with listening(real_fence(tmp_path, uid)) as fence:
        outcome = await KubernetesFencer(api, KEYS).fence(BINDING, 1, "127.64.1.9:10911", deadline_seconds=5.0)
    assert not outcome.confirmed
    assert not fence.heard


async def test_a_fence_that_was_started_again_is_asked_anew(
    monkeypatch: pytest.MonkeyPatch, api: KubernetesApi, tmp_path: Path
) -> None:
    """A restarted fence has lost its challenge, and would refuse the old order for ever."""
    monkeypatch.setattr(fencing, "ANEW_SECONDS", 0.1)
    uid = await make_pod(api)
    fences = [real_fence(tmp_path, uid), real_fence(tmp_path, uid)]
    key = KEYS.key_of(GROUP_UID)

    def answers(datagram: bytes) -> bytes | None:
        said = open_sealed(datagram, key, uid)
        if said is not None and said.tag == ORDER and len(fences) == 2:
            del fences[0]
        return fences[0](datagram)

    async with listening(answers):
        outcome = await KubernetesFencer(api, KEYS).fence(BINDING, 1, ADDRESS, deadline_seconds=20.0)
    assert "signed" in outcome.how


def test_the_root_and_the_keys_are_in_no_repr() -> None:
    fence = fencing.PodFence("orders-1", "uid", HOST, PORT, b"s" * 32)
    assert "sss" not in repr(fence)
    assert "rrr" not in repr(KEYS)


def test_each_group_has_its_own_key_and_another_root_another_name() -> None:
    assert KEYS.key_of("a") != KEYS.key_of("b")
    assert KEYS.secret_name("orders", "a") != FenceKeys(b"q" * 32).secret_name("orders", "a")
    assert KEYS.secret_name("orders", "a").startswith("orders-fence-")
