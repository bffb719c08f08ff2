"""The elector against the embedded API: which candidate leads, for how long it may believe so, and what it does without answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.kube import KubernetesApi, NotLeadingError, OutcomeUnknownError
from brokergroup_operator.kube.resources import CONFIG_MAPS, LEASES, NAMESPACES
from brokergroup_operator.reconcile.run.leader import LeaderElector
from brokergroup_operator.reconcile.settings import LeaderElectionSettings
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile.world import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kube_sandbox.api_server.server import SandboxApiServer

PROMISED_SECONDS = 5.0
NAMESPACE = "operators"


def settings(identity: str, **values: Any) -> LeaderElectionSettings:
    """A Lease of a second, so that its end can be waited for."""
    short = {
        "lease_duration_seconds": 1,
        "renew_deadline_seconds": 0.6,
        "retry_period_seconds": 0.1,
        "request_timeout_seconds": 0.3,
    }
    return LeaderElectionSettings(namespace=NAMESPACE, identity=identity, **(short | values))


@dataclass
class Candidate:
    """An elector, and its callbacks in order."""

    elector: LeaderElector
    told: list[str] = field(default_factory=list)

    async def leads(self) -> bool:
        return self.elector.leads_for_seconds > 0

    async def follows(self) -> bool:
        return self.elector.leads_for_seconds == 0


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
        elector = LeaderElector(
            api,
            settings(identity, **values),
            on_started=lambda: told.append("started"),
            on_stopped=lambda: told.append("stopped"),
        )
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


async def test_one_leads_and_the_next_follows_when_the_lease_is_given_back(
    api: KubernetesApi, stand: Callable[..., Candidate]
) -> None:
    first = stand("first", lease_duration_seconds=60, renew_deadline_seconds=50.0)
    await until("the first leads", first.leads)
    second = stand("second", lease_duration_seconds=60, renew_deadline_seconds=50.0)
    await asyncio.sleep(0.3)
    assert second.told == []
    await first.elector.stop()
    await until("the second leads", second.leads)
    lease = await api.get(LEASES, "brokergroup-operator", namespace=NAMESPACE)
    assert lease["spec"]["holderIdentity"].startswith("second_")


async def test_a_leader_that_ends_while_it_renews_gives_the_lease_back(
    api: KubernetesApi, stand: Callable[..., Candidate], sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server carries out a renewal after its sender has gone; the Lease then differs from what the sender knew."""
    first = stand("first", lease_duration_seconds=60, renew_deadline_seconds=50.0, request_timeout_seconds=20.0)
    await until("the first leads", first.leads)
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

    async def one_leads() -> bool:
        return any(twin.elector.leads_for_seconds > 0 for twin in twins)

    await until("one leads", one_leads)
    await asyncio.sleep(0.5)
    assert [twin.elector.leads_for_seconds > 0 for twin in twins].count(True) == 1


async def test_a_leader_without_an_answer_stops_before_another_may_begin(
    stand: Callable[..., Candidate], sandbox: SandboxApiServer
) -> None:
    first = stand("first")
    await until("the first leads", first.leads)

    def refuse(request: Any) -> None:
        if request.method == "PUT" and request.path.endswith("/leases/brokergroup-operator"):
            raise StatusError(503, "ServiceUnavailable", "no renewal today")

    sandbox.before_request = refuse
    await until("the first knows", first.follows)
    await until("it heard both", lambda: _said(first, ["started", "stopped"]))
    sandbox.before_request = None
    second = stand("second")
    await until("one of them leads", lambda: _any_leads(first, second))


async def test_a_leader_counts_its_time_from_before_it_asked(
    stand: Callable[..., Candidate], sandbox: SandboxApiServer
) -> None:
    """An answer may take long, and a candidate counts from the moment of the write."""
    renew_deadline_seconds, asked = 50.0, []

    async def answer_late(request: Any) -> None:
        if request.method in {"POST", "PUT"}:
            asked.append(time.monotonic())
            await asyncio.sleep(0.3)

    sandbox.before_request = answer_late
    first = stand(
        "first",
        lease_duration_seconds=60,
        renew_deadline_seconds=renew_deadline_seconds,
        retry_period_seconds=20.0,
        request_timeout_seconds=20.0,
    )
    await until("the first leads", first.leads)
    now = time.monotonic()
    assert now + first.elector.leads_for_seconds <= asked[0] + renew_deadline_seconds
    sandbox.before_request = None


async def _said(candidate: Candidate, words: list[str]) -> bool:
    return candidate.told == words


async def _any_leads(*candidates: Candidate) -> bool:
    return any(candidate.elector.leads_for_seconds > 0 for candidate in candidates)


async def test_a_frozen_leader_may_not_write_when_it_wakes(api: KubernetesApi, stand: Callable[..., Candidate]) -> None:
    """The loop stands still, as a stopped process does: the write comes before any timer has run."""
    first = stand("first")
    await until("the first leads", first.leads)
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
    newer = stand("newer")
    await until("the newer leads", newer.leads)
    assert loop.time() - begun_seconds >= 2.9


async def test_two_releases_that_share_a_lease_say_so(api: KubernetesApi, stand: Callable[..., Candidate]) -> None:
    """Each pod of the second would follow for ever, and its release reconcile nothing, without a word."""
    first = stand("first-operator-0")
    await until("the first leads", first.leads)
    with capture_logs() as told:
        fellow, stranger = stand("first-operator-1"), stand("second-operator-0")
        await until("the stranger is reported", _shared_is_in(told))
    [shared] = [one for one in told if one["event"] == "leader_election.shared"]
    assert shared["lease"] == f"{NAMESPACE}/brokergroup-operator"
    assert shared["held_by"].startswith("first-operator-0_")
    assert fellow.elector.leads_for_seconds == 0
    assert stranger.elector.leads_for_seconds == 0


async def test_two_releases_with_a_lease_each_both_lead(stand: Callable[..., Candidate]) -> None:
    first, second = stand("first-operator-0"), stand("second-operator-0", name="second")
    await until("the first leads", first.leads)
    await until("the second leads", second.leads)


def _shared_is_in(told: list[Any]) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return any(one["event"] == "leader_election.shared" for one in told)

    return found
