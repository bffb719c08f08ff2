"""One world for the tests of this folder: scripted brokers under planes, a fencer, a store with gates, notes of reports.

A test that needs another behaviour of one of them subclasses it and gives the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.controller.change.fencing import FenceOutcome
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import FailoverTimeline
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import (
    DEFAULT_DEADLINE_SECONDS,
    GroupKey,
    RecordStoreError,
    RecordUnavailableError,
    StoredRecord,
)
from controller_core.model import BrokerGroupRecord
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import RemotingCommand, request
from tests.support.fake_broker import CLUSTER, NAME, FakeBroker, FakeGroup, eventually
from tests.support.places import free_port
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.records.store import RecordStore

# The group of the scripted brokers, as a plane with a FixedDirectory knows it.
KEY: Final = GroupKey("standalone", NAME)
STRICT: Final = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
# If one of three is lost, the group acknowledges nothing.
ALL_THREE: Final = ControllerSettings(shrink_floor=True, min_in_sync_replicas=3)
LOOSE: Final = ControllerSettings()


class World(FakeGroup):
    """The brokers of one group, the planes over them, and what these report (`notes`), if no test gives an observer."""

    # That of the last plane.
    directory: PodsDirectory

    def __init__(self, start_plane: Callable[..., Awaitable[ControllerPlane]]) -> None:
        super().__init__()
        self.start_plane = start_plane
        self.notes = Notes()

    async def plane(
        self,
        store: RecordStore | None = None,
        *,
        settings: ControllerSettings = STRICT,
        wishes: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> ControllerPlane:
        """Start a plane; from now on brokers know only this one. `settings` and `wishes` are the group's."""
        self.directory = more.pop("directory", None) or PodsDirectory(settings=settings, **wishes or {})
        observed = {"directory": self.directory, "observer": self.notes} | more
        plane = await self.start_plane(store, **observed)
        self.planes = [plane.address]
        return plane

    async def several(self, number: int, store: RecordStore | None = None, **more: Any) -> list[ControllerPlane]:
        """Start planes over one store that do not know each other. Brokers know all planes."""
        store = store or MemoryRecordStore()
        planes = [await self.plane(store, **more) for _ in range(number)]
        self.planes = [plane.address for plane in planes]
        return planes

    async def incident(self) -> FailoverTimeline:
        """Return the one incident, once it is closed."""
        await eventually(lambda: self.notes.closed, what="the incident to be closed")
        [incident] = self.notes.closed
        assert isinstance(incident, FailoverTimeline)
        return incident

    async def three_under(
        self, store: RecordStore | None = None, **more: Any
    ) -> tuple[ControllerPlane, list[FakeBroker]]:
        """Start a plane and three brokers in sync; the first is master."""
        plane = await self.plane(store, **more)
        return plane, await self.three()

    async def serving(self, store: RecordStore | None = None, **more: Any) -> tuple[ControllerPlane, list[FakeBroker]]:
        """As `three_under`; return once the plane knows that the group acknowledges."""
        plane, brokers = await self.three_under(store, **more)
        await knows(plane)
        return plane, brokers

    async def peers(
        self,
        number: int,
        *,
        observers: Sequence[Observer | None] = (),
        fencers: Sequence[Any] = (),
        settings: ControllerSettings = STRICT,
        each: Sequence[dict[str, Any]] = (),
        **more: Any,
    ) -> list[ControllerPlane]:
        """Start planes over one store that know each other; `each` holds one plane's own arguments. Brokers know all planes."""
        ports, store = [free_port() for _ in range(number)], more.pop("store", None) or MemoryRecordStore()
        self.planes = [f"127.0.0.1:{port}" for port in ports]
        return [
            await self.start_plane(
                store,
                directory=PodsDirectory(settings=settings),
                observer=observers[index] if observers else self.notes,
                fencer=fencers[index] if fencers else None,
                listen_port=port,
                peer_addresses=tuple(self.planes),
                **more | (each[index] if each else {}),
            )
            for index, port in enumerate(ports)
        ]


async def looked_at(group: World, **settings: Any) -> tuple[ControllerPlane, list[FakeBroker]]:
    """Start a group whose links are looked at often, and mended soon; return it after the first look."""
    often = {"link_check_seconds": 0.05, "link_missing_longest_seconds": 0.05}
    plane, brokers = await group.three_under(**often | settings)
    await eventually(lambda: brokers[1].asked, what="the first look")
    return plane, brokers


async def compared_again(broker: FakeBroker) -> None:
    """Wait until one more comparison of this slave's metadata has had its effect."""
    await broker.asked_again(RequestCode.GET_ALL_TOPIC_CONFIG, times=3, what="later comparisons")


async def knows(*planes: ControllerPlane) -> None:
    """Wait until each plane knows the group, and that it acknowledges."""
    await eventually(
        lambda: all((now := plane.snapshot(KEY)) is not None and now.writable for plane in planes),
        what="all planes to know a group that serves",
    )


async def ask(
    plane: str, code: int, body: bytes | None = None, *, client: RemotingClient | None = None, **fields: object
) -> RemotingCommand:
    """Send a request about the group as a caller outside the group."""
    known = {"clusterName": CLUSTER, "brokerName": NAME}
    asked = request(code, ext_fields=known | {name: str(value) for name, value in fields.items()}, body=body)
    caller = client or RemotingClient()
    answer = await caller.invoke(plane, asked, timeout_seconds=5.0)
    if client is None:
        await caller.close()
    return answer


async def look_up(plane: ControllerPlane) -> None:
    """Send 1004: the plane learns of the group and reads its record, even if the brokers do not know the plane."""
    await ask(plane.address, RequestCode.CONTROLLER_GET_REPLICA_INFO)


class Fencer:
    """Kills brokers of this group, as a pod's deletion does, and records id and address; without a group it kills nothing."""

    def __init__(
        self, group: FakeGroup | None = None, *, confirms: bool = True, untouched: bool = False, how: str = ""
    ) -> None:
        self.group, self.confirms, self.untouched = group, confirms, untouched
        self.how = how or ("killed" if confirms else "no answer")
        self.fenced: list[int] = []
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self.fenced.append(broker_id)
        self.asked.append(address)
        await self.open.wait()
        if self.group is not None and self.confirms:
            assert self.group.brokers[broker_id].address == address
            await self.group.brokers[broker_id].kill()
        return FenceOutcome(confirmed=self.confirms, how=self.how, untouched=self.untouched)


def raises_epoch(record: Record, expected: Stored) -> bool:
    """Whether this write is an election."""
    return record is not None and expected is not None and record.master_epoch > expected.record.master_epoch


Record = BrokerGroupRecord | None
Stored = StoredRecord | None
Write = Callable[[], Awaitable[Stored]]


class Store(MemoryRecordStore):
    """Records in memory, or one process's view of another store. Reads and writes wait while their gate is shut."""

    def __init__(self, shared: MemoryRecordStore | None = None) -> None:
        super().__init__()
        self.shared = shared
        self.reads = 0
        self.waiting = 0
        self.reading, self.writing = asyncio.Event(), asyncio.Event()
        self.reading.set()
        self.writing.set()

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> Stored:
        self.reads += 1
        await self._through(self.reading)
        read = super().read if self.shared is None else self.shared.read
        return await read(key, deadline_seconds=deadline_seconds)

    async def commit(
        self,
        key: GroupKey,
        record: Record,
        expected: Stored,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> Stored:
        await self._through(self.writing)
        commit = super().commit if self.shared is None else self.shared.commit
        return await self.put(record, expected, lambda: commit(key, record, expected, deadline_seconds))

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        """Decide the fate of a write; `write` performs it."""
        return await write()

    async def _through(self, gate: asyncio.Event) -> None:
        self.waiting += 1
        await gate.wait()
        self.waiting -= 1


async def stored_in(store: RecordStore, key: GroupKey = KEY) -> StoredRecord:
    """Return the group's record as it is stored, which must be there."""
    stored = await store.read(key, deadline_seconds=1.0)
    assert stored is not None, f"no record of {key} is stored"
    return stored


class RefusingStore(Store):
    """Answers elections with this error while `refuses`, or every write of the record, and counts them."""

    refuses = False
    refused = 0

    def __init__(self, error: type[RecordStoreError] = RecordUnavailableError, *, elections_alone: bool = True) -> None:
        super().__init__()
        self.error, self.elections_alone = error, elections_alone

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        if self.refuses and (not self.elections_alone or raises_epoch(record, expected)):
            self.refused += 1
            raise self.error("the store does not want it")
        return await write()


class MuteStore(Store):
    """Writes the next election without an answer."""

    mute = False
    unanswered = 0

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        written = await write()
        if not self.mute or not raises_epoch(record, expected):
            return written
        self.mute = False
        self.unanswered += 1
        assert written is not None
        raise RecordUnavailableError("no answer", write_id=written.write_id)


# The lists of `Notes`: the observer's call and arguments that each keeps.
KEPT: Final[dict[str, tuple[str, int | slice]]] = {
    "lost": ("master_lost", 0),
    "changed": ("master_changed", 0),
    "closed": ("incident_closed", 0),
    "withdrawn": ("failover_withdrawn", 0),
    "records": ("record_changed", slice(1, 3)),
    "conflicts": ("record_conflict", 0),
    "seats_lost": ("seat_lost", 1),
    "floors": ("epoch_floor_raised", 1),
    "jumps": ("epoch_jump", 1),
    "adopted": ("broker_adopted", 1),
    "too_old": ("broker_too_old", 1),
    "unlinked": ("members_unlinked", 1),
    "cured": ("member_relinked", slice(1, 3)),
    "unheard": ("members_unheard", 1),
    "differences": ("metadata_diverged", 1),
    "copied_again": ("metadata_copied_again", 1),
    "carried": ("offsets_carried", 1),
    "put_back": ("acknowledges_again", slice(1, 3)),
    "sent": ("canary_sent", 1),
    "answered": ("request_answered", 0),
}
# Calls whose reason names a safety rule.
REASONS: Final = {"seat_lost": "rule 2", "epoch_floor_raised": "rule 3"}


class Notes(Observer):
    """Keeps the planes' reports: each list of `KEPT`, and an incident's calls in order, with the epoch known then."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int | None]] = []
        self.kept: dict[str, list[Any]] = {name: [] for name in KEPT}

    def __getattr__(self, name: str) -> list[Any]:
        return self.kept[name]

    @property
    def masters(self) -> dict[int, int | None]:
        """Return the master of each epoch that a plane wrote."""
        return {after.master_epoch: after.master_broker_id for _, after in self.records}

    @property
    def testimonies(self) -> int:
        """Return how often other planes asked which members this one hears."""
        return self.answered.count(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA)


def _keep(call: str) -> Callable[..., None]:
    lists = [(name, which) for name, (one, which) in KEPT.items() if one == call]

    def keep(self: Notes, *arguments: Any, **named: Any) -> None:
        said = (*arguments, *named.values())
        assert REASONS.get(call, "") in str(said[-1])
        for name, which in lists:
            self.kept[name].append(said[which])
        if call in ("master_lost", "master_committed", "incident_closed"):
            self.order.append((call, said[0].epoch_after))

    return keep


for _call in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(Notes, _call, _keep(_call))
