"""When a pass begins: which candidate leads and for how long it may believe so, and the queue of passes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.kube import KubernetesApi, NotLeadingError, OutcomeUnknownError
from brokergroup_operator.kube.resources import CONFIG_MAPS, LEASES, NAMESPACES
from brokergroup_operator.reconcile.run.leader import LeaderElector
from brokergroup_operator.reconcile.run.queue import LONGEST_WAIT_SECONDS, ReconcileQueue
from brokergroup_operator.reconcile.settings import LeaderElectionSettings, ReconcileSettings
from brokergroup_operator.records.store import GroupKey
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile.cases import table
from tests.reconcile.world import until
from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from kube_sandbox.api_server.server import SandboxApiServer


PROMISED_SECONDS = 5.0
NAMESPACE = "operators"


# No lease ends in a test.
LONG: dict[str, Any] = {"lease_duration_seconds": 60, "renew_deadline_seconds": 50.0}


def settings(identity: str, **values: Any) -> LeaderElectionSettings:
    """A Lease of a second, so that its end can be waited for."""
    short = {"lease_duration_seconds": 1, "renew_deadline_seconds": 0.6, "retry_period_seconds": 0.1}
    return LeaderElectionSettings(
        namespace=NAMESPACE, identity=identity, **(short | {"request_timeout_seconds": 0.3} | values)
    )


@dataclass
class Candidate:
    """An elector, and its callbacks in order."""

    elector: LeaderElector
    told: list[str] = field(default_factory=list)

    def leads(self) -> bool:
        return self.elector.leads_for_seconds > 0

    async def leading(self) -> Candidate:
        """Wait until it leads."""
        await until("the candidate leads", self.leads)
        return self


@pytest.fixture
async def api(sandbox: SandboxApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.from_url(sandbox.url) as client:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        yield client


@pytest.fixture
async def stand(api: KubernetesApi) -> AsyncIterator[Callable[..., Candidate]]:
    candidates: list[Candidate] = []

    def start(identity: str, **values: Any) -> Candidate:
        told: list[str] = []
        callbacks = {f"on_{word}": partial(told.append, word) for word in ("started", "stopped")}
        elector = LeaderElector(api, settings(identity, **values), **callbacks)
        candidates.append(Candidate(elector, told))
        elector.start()
        return candidates[-1]

    yield start
    for candidate in candidates:
        await candidate.elector.stop()


def test_the_settings_promise_a_takeover_in_time() -> None:
    promised = LeaderElectionSettings(namespace="any", identity="any")
    assert promised.takeover_seconds <= PROMISED_SECONDS


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"renew_deadline_seconds": 3.0}, "renew_deadline_seconds is 3.0, expected less than lease_duration_seconds"),
        ({"request_timeout_seconds": 1.5}, "expected less than renew_deadline_seconds"),
    ],
)
def test_settings_that_allow_two_leaders_or_one_that_gives_up_at_once_are_refused(
    values: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        LeaderElectionSettings(namespace="any", identity="any", **values)


async def test_a_leader_that_ends_while_it_renews_gives_the_lease_back(
    api: KubernetesApi, stand: Callable[..., Candidate], sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server carries out a renewal after its sender has gone; the Lease then differs from what the sender knew."""
    first = await stand("first", **LONG, request_timeout_seconds=20.0).leading()
    renewing, replace = asyncio.Event(), api.replace

    async def carried_out(*args: Any, **options: Any) -> Any:
        return await asyncio.shield(asyncio.ensure_future(replace(*args, **options)))

    async def answer_late(request: Any) -> None:
        if request.method == "PUT":
            renewing.set()
            await asyncio.sleep(0.3)

    monkeypatch.setattr(api, "replace", carried_out)
    sandbox.before_request = answer_late
    await renewing.wait()
    await first.elector.stop()
    lease = await api.get(LEASES, "brokergroup-operator", namespace=NAMESPACE)
    assert lease["spec"]["holderIdentity"] == ""


async def test_two_of_one_name_are_not_both_leader(stand: Callable[..., Candidate]) -> None:
    """Both by hand on one host, say: the official elector would have taken each for the holder."""
    twins = [stand("twin"), stand("twin")]

    await until("one leads", lambda: any(twin.leads() for twin in twins))
    await asyncio.sleep(0.5)
    assert [twin.leads() for twin in twins].count(True) == 1


async def test_a_leader_without_an_answer_stops_before_another_may_begin(
    stand: Callable[..., Candidate], sandbox: SandboxApiServer
) -> None:
    first = await stand("first").leading()

    def refuse(request: Any) -> None:
        if request.method == "PUT" and request.path.endswith("/leases/brokergroup-operator"):
            raise StatusError(503, "ServiceUnavailable", "no renewal today")

    sandbox.before_request = refuse
    await until("the first knows", lambda: not first.leads())
    await until("it heard both", lambda: first.told == ["started", "stopped"])
    sandbox.before_request = None
    second = stand("second")
    await until("one of them leads", lambda: first.leads() or second.leads())


async def test_a_leader_counts_its_time_from_before_it_asked(
    stand: Callable[..., Candidate], sandbox: SandboxApiServer
) -> None:
    """An answer may take long, and a candidate counts from the moment of the write."""
    asked: list[float] = []

    async def answer_late(request: Any) -> None:
        if request.method in {"POST", "PUT"}:
            asked.append(time.monotonic())
            await asyncio.sleep(0.3)

    sandbox.before_request = answer_late
    first = await stand("first", **LONG, retry_period_seconds=20.0, request_timeout_seconds=20.0).leading()
    now = time.monotonic()
    assert now + first.elector.leads_for_seconds <= asked[0] + LONG["renew_deadline_seconds"]
    sandbox.before_request = None


async def test_a_frozen_leader_may_not_write_when_it_wakes(api: KubernetesApi, stand: Callable[..., Candidate]) -> None:
    """The loop stands still, as a stopped process does: the write comes before any timer has run."""
    first = await stand("first").leading()
    guarded = api.guarded(lambda: first.elector.leads_for_seconds)
    time.sleep(0.7)  # noqa: ASYNC251 - the freeze
    with pytest.raises(NotLeadingError, match="does not lead"):
        await guarded.create(CONFIG_MAPS, {"metadata": {"name": "late", "namespace": NAMESPACE}})
    await guarded.close()


async def test_no_write_is_under_way_for_longer_than_its_writer_leads(
    api: KubernetesApi, sandbox: SandboxApiServer
) -> None:
    """A write that was begun in time landed up to ten seconds later, when another one had long led."""
    answered = asyncio.Event()

    async def hold(_: Any) -> None:
        await answered.wait()

    sandbox.before_request = hold
    guarded = api.guarded(lambda: 0.2)
    with pytest.raises(OutcomeUnknownError):
        await guarded.create(
            CONFIG_MAPS, {"metadata": {"name": "late", "namespace": NAMESPACE}}, timeout_seconds=10_000
        )
    answered.set()
    sandbox.before_request = None
    await guarded.close()


@pytest.mark.parametrize("lease_seconds", [3, 30])
def test_one_flag_makes_all_times_of_the_lease(lease_seconds: int) -> None:
    """With an API that answers after more than a second no candidate led, and no flag changed that."""
    lasting = LeaderElectionSettings.lasting(lease_seconds, namespace=NAMESPACE, identity="first")
    assert lasting.lease_duration_seconds == lease_seconds
    assert lasting.request_timeout_seconds == pytest.approx(lease_seconds / 3)


async def test_an_older_operators_longer_lease_is_waited_for(
    api: KubernetesApi, stand: Callable[..., Candidate]
) -> None:
    metadata = {"name": "brokergroup-operator", "namespace": NAMESPACE}
    spec = {"holderIdentity": "older", "leaseDurationSeconds": 3}
    await api.create(LEASES, {"metadata": metadata, "spec": spec})
    loop = asyncio.get_running_loop()
    begun_seconds = loop.time()
    await stand("newer").leading()
    assert loop.time() - begun_seconds >= 2.9


async def test_two_releases_that_share_a_lease_say_so(api: KubernetesApi, stand: Callable[..., Candidate]) -> None:
    """Each pod of the second would follow for ever, and its release reconcile nothing, without a word."""
    await stand("first-operator-0").leading()
    with capture_logs() as told:
        fellow, stranger = stand("first-operator-1"), stand("second-operator-0")
        await until(
            "the stranger is reported", lambda: [one for one in told if one["event"] == "leader_election.shared"]
        )
    [shared] = [one for one in told if one["event"] == "leader_election.shared"]
    assert shared["lease"] == f"{NAMESPACE}/brokergroup-operator"
    assert shared["held_by"].startswith("first-operator-0_")
    assert fellow.elector.leads_for_seconds == 0
    assert stranger.elector.leads_for_seconds == 0


async def test_two_releases_with_a_lease_each_both_lead(stand: Callable[..., Candidate]) -> None:
    first, second = stand("first-operator-0"), stand("second-operator-0", name="second")
    await until("the first leads", first.leads)
    await until("the second leads", second.leads)


ONE, TWO = GroupKey("shop", "one"), GroupKey("shop", "two")
SETTINGS = ReconcileSettings(
    controller_addresses=("c:1",),
    backoff_initial_seconds=1.0,
    backoff_maximum_seconds=4.0,
    backoff_after_event_seconds=1.0,
    pass_timeout_seconds=10.0,
    concurrent_passes=2,
)


class Passes:
    """Records each pass with the virtual time of its start, in seconds."""

    def __init__(self) -> None:
        self.started: list[tuple[str, float]] = []
        self.running: set[GroupKey] = set()
        self.failures_left = 0
        self.duration_seconds = 0.0
        self.look_again_seconds: float | None = None
        # The groups whose master changes.
        self.changing: dict[GroupKey, asyncio.Event] = {}

    async def until_master_is_told(self, key: GroupKey, timeout_seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                if key in self.changing:
                    await self.changing[key].wait()

    async def run(self, key: GroupKey) -> float | None:
        assert key not in self.running, "two passes of one group at a time"
        self.running.add(key)
        try:
            self.started.append((key.name, asyncio.get_running_loop().time()))
            await asyncio.sleep(self.duration_seconds)
            if self.failures_left:
                self.failures_left -= 1
                raise RuntimeError("the API server is away")
            return self.look_again_seconds
        finally:
            self.running.discard(key)


def in_virtual_time(test: Callable[[ReconcileQueue, Passes], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test on a loop of its own whose clock jumps: minutes of pauses take no time."""

    async def run() -> None:
        passes = Passes()
        queue = ReconcileQueue(passes.run, SETTINGS, until_master_is_told=passes.until_master_is_told)
        try:
            await test(queue, passes)
        finally:
            await queue.stop()

    def sync_test() -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(run())
        finally:
            loop.close()

    sync_test.__name__, sync_test.__doc__ = test.__name__, test.__doc__
    return sync_test


# How the passes of group one behave; what happens: events, and seconds between them; and the seconds at which its passes start.
EVENTS: list[tuple[str, dict[str, float], list[str | float], list[float]]] = [
    ("many events make one pass", {}, [*10 * ["event"], 1], [0]),
    ("an event during a pass makes one more", {"duration_seconds": 2}, ["event", 1, "event", "event", 10], [0, 2]),
    ("failures are repeated with growing pauses", {"failures_left": 5}, ["event", 100], [0, 1, 3, 7, 11, 15]),
    # After 7 the next would be at 11, after 8 at 12.
    ("an event cuts a pause, not to nothing", {"failures_left": 9}, ["event", 7.5, "event", 2, "event", 0.1], [0, 1, 3, 7, 8, 9.5]),
    ("a pass may ask to be repeated", {"look_again_seconds": 5}, ["event", 11], [0, 5, 10]),
    ("an event is sooner than the repetition", {"look_again_seconds": 50}, ["event", 1, "event", 1], [0, 1]),
    ("a pass that hangs is cut and repeated", {"duration_seconds": 1000}, ["event", 12], [0, 11]),
    ("nothing starts after the stop", {"duration_seconds": 5}, ["event", 1, "event", "stop", "event", 10], [0]),
]  # fmt: skip


@pytest.mark.parametrize(("behaviour", "happenings", "starts"), table(EVENTS))
def test_when_passes_start(behaviour: dict[str, float], happenings: list[str | float], starts: list[float]) -> None:
    @in_virtual_time
    async def story(queue: ReconcileQueue, passes: Passes) -> None:
        for name, value in behaviour.items():
            setattr(passes, name, value)
        for one in happenings:
            if one == "event":
                queue.add(ONE)
            elif one == "stop":
                await queue.stop()
                queue.add(TWO)
            else:
                await asyncio.sleep(float(one))
        assert passes.started == [("one", seconds) for seconds in starts]
        assert behaviour or queue.keys() == []

    story()


@in_virtual_time
async def test_groups_run_side_by_side_up_to_the_limit(queue: ReconcileQueue, passes: Passes) -> None:
    passes.duration_seconds = 3
    for key in (ONE, TWO, GroupKey("shop", "three")):
        queue.add(key)
    await asyncio.sleep(10)
    assert passes.started == [("one", 0), ("two", 0), ("three", 3)]


@in_virtual_time
async def test_a_pass_that_ends_in_the_moment_of_the_stop_is_the_last(queue: ReconcileQueue, passes: Passes) -> None:
    """`asyncio.wait_for` (3.11) swallows the cancellation if the pass has just ended: the next pass would begin."""
    passes.look_again_seconds = 1.0
    queue.add(ONE)
    await asyncio.sleep(0)
    worker = queue._workers[ONE]
    while not passes.started or ONE in passes.running:  # noqa: ASYNC110 - turn by turn: the moment is what is looked at
        await asyncio.sleep(0)
    # The pass has ended, and `wait_for` does not know it yet.
    stopping = asyncio.ensure_future(queue.stop())
    await asyncio.wait({stopping}, timeout=60)
    assert worker.done()
    assert len(passes.started) == 1


async def signalled_at_each_hundredth(queue: ReconcileQueue, *, times: int) -> None:
    """Signals of group one, a hundred a second."""
    for _ in range(times):
        queue.signal(ONE)
        await asyncio.sleep(0.01)


@in_virtual_time
async def test_a_signal_begins_a_pass_at_once(queue: ReconcileQueue, passes: Passes) -> None:
    """A failover is some signals within a second: none of them waits."""
    for _ in range(8):
        queue.signal(ONE)
        await asyncio.sleep(0.05)
    await asyncio.sleep(100)
    queue.signal(ONE)
    await asyncio.sleep(1)
    assert [when for _, when in passes.started] == pytest.approx([*(0.05 * number for number in range(8)), 100.4])


@in_virtual_time
async def test_a_change_of_master_goes_first(queue: ReconcileQueue, passes: Passes) -> None:
    passes.changing[ONE] = asyncio.Event()
    for key in (ONE, TWO):
        queue.signal(key)
    await asyncio.sleep(0.1)
    queue.add(ONE)
    await asyncio.sleep(0.1)
    assert passes.started == [("two", 0)]
    passes.changing[ONE].set()
    await asyncio.sleep(0.1)
    assert passes.started == [("two", 0), ("one", pytest.approx(0.2))], "one pass for what happened meanwhile"


@in_virtual_time
async def test_a_change_of_master_that_lasts_holds_up_no_pass_for_long(queue: ReconcileQueue, passes: Passes) -> None:
    passes.changing[ONE] = asyncio.Event()
    queue.add(ONE)
    await asyncio.sleep(5)
    assert passes.started == [("one", LONGEST_WAIT_SECONDS)]


@in_virtual_time
async def test_a_hundred_signals_a_second_are_one_pass_a_second(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=20 * 100)
    assert len(passes.started) <= 20 + 10 + 1


@in_virtual_time
async def test_the_last_of_many_signals_is_not_lost(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=500)
    ended = asyncio.get_running_loop().time()
    await asyncio.sleep(10)
    assert [when for _, when in passes.started if when >= ended] == [pytest.approx(ended, abs=1.0)]


@in_virtual_time
async def test_a_change_of_an_object_waits_for_no_signals(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=1000)
    await asyncio.sleep(0.5)
    queue.add(ONE)
    changed = asyncio.get_running_loop().time()
    await asyncio.sleep(0.1)
    assert passes.started[-1] == ("one", changed)


@in_virtual_time
async def test_signals_of_one_group_cost_no_other_group_anything(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=1000)
    queue.signal(TWO)
    signalled = asyncio.get_running_loop().time()
    await asyncio.sleep(0.1)
    assert ("two", signalled) in passes.started


@in_virtual_time
async def test_no_signal_begins_a_pass_after_the_stop(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=1000)
    await asyncio.sleep(0.5)  # one waits by now
    begun = len(passes.started)
    await queue.stop()
    queue.signal(TWO)
    await asyncio.sleep(10)
    assert len(passes.started) == begun
