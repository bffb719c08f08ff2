"""One group under load: mastership alternates between Java and Python by crash and switchover, then all logs are compared.

The producer is allowed a share of the messages per change of master; half of a share is acknowledged before the change, so the
rest is in flight during it. A pull consumer reads all the time. At the end, in a settled group, a push
consumer of a new consumer group reads all messages from the master, mastership changes again, and another one rereads them.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.interop.accounts import Account, account
from tests.interop.clients import JavaClient, compile_client, start_client
from tests.interop.lab import Lab, LabError
from tests.interop.logs import Comparison, compare_epochs, first_difference, read_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.interop.accounts import Acknowledged, Seen

TOPIC = "interop"
QUEUES = 4
WORKERS = 8
READ_SECONDS = 120.0
COPY_SECONDS = 40.0
READERS = ("first-reader", "second-reader")


@dataclass(frozen=True)
class Cast:
    """The members in their start order (the first is the first master), and the changes: `kill`, or the next master."""

    java_version: str
    kinds: dict[str, str]
    plot: tuple[str, ...]


@dataclass
class Outcome:
    """The result of one group's run."""

    messages: int = 0
    failovers: int = 0
    account: Account = field(default_factory=Account)
    comparison: Comparison = field(default_factory=Comparison)

    def add(self, other: Outcome) -> None:
        self.messages += other.messages
        self.failovers += other.failovers
        self.account.add(other.account)
        self.comparison.add(other.comparison)


@dataclass
class Campaign:
    """One run of one cast."""

    cast: Cast
    messages: int
    folder: Path
    say: Callable[[str], None]
    clients: list[JavaClient] = field(default_factory=list)

    async def run(self) -> Outcome:
        self.lab = Lab(self.folder, self.cast.java_version)
        try:
            return await self._run()
        finally:
            for client in self.clients:
                client.process.kill()
                client.process.wait()
            await self.lab.stop()

    async def _run(self) -> Outcome:
        lab = self.lab
        compiled = asyncio.create_task(
            asyncio.to_thread(compile_client, self.folder / "classes", self.cast.java_version)
        )
        await asyncio.to_thread(lab.start, self.cast.kinds)
        for count, name in enumerate(self.cast.kinds, start=1):
            lab.start_member(name)
            await lab.until_whole()
            self.say(f"{name} in sync, {count} of {len(self.cast.kinds)}")
        self.class_path = await compiled
        producer = self._start("producer", "produce", workers=WORKERS)
        follower = self._start("follower", "pull", group="interop-follower")
        await self._live(producer)
        acknowledged = producer.acknowledged()
        await asyncio.to_thread(producer.stop)
        outcome = Outcome(messages=len(acknowledged), account=await self._read(follower, acknowledged))
        for reader in READERS:
            consumer = self._start(reader, "push", group=reader)
            outcome.account.add(await self._read(consumer, acknowledged))
            if reader == READERS[0]:
                await lab.switch_over(await self._next_master())
        outcome.failovers = lab.failovers
        outcome.comparison = await compare_members(lab, self.say)
        outcome.comparison.mismatches += await metadata_mismatches(lab, (TOPIC,), READERS)
        outcome.comparison.mismatches += await registration_mismatches(lab)
        return outcome

    def _start(self, name: str, role: str, **options: str | int) -> JavaClient:
        assert self.lab.name_server is not None
        options = {"name_server": self.lab.name_server.address, "topic": TOPIC, **options}
        client = start_client(self.folder / "clients", name, self.class_path, role, **options)
        self.clients.append(client)
        return client

    async def _live(self, producer: JavaClient) -> None:
        """The plot, under load."""
        share = self.messages // (len(self.cast.plot) + 1)
        for number, event in enumerate(self.cast.plot):
            producer.tell(str((number + 1) * share))
            await self._until_acknowledged(producer, number * share + share // 2)
            began = time.monotonic()
            old = await self.lab.until_whole()
            new = await (self.lab.fail_over() if event == "kill" else self.lab.switch_over(event))
            self.say(f"{event}: {old.name} -> {new.name}, whole again after {time.monotonic() - began:.1f} s")
        producer.tell(str(self.messages))
        await self._until_acknowledged(producer, self.messages)

    async def _until_acknowledged(self, producer: JavaClient, count: int) -> None:
        async def reached() -> int | None:
            done = len(producer.outcomes())
            return done if done >= count else None

        await self.lab.eventually(reached, f"{count} acknowledgements")

    async def _next_master(self) -> str:
        """A member of the other kind than the master: Java's readers read Python's log too, and the other way round."""
        master = await self.lab.until_whole()
        return next(one.name for one in self.lab.members.values() if one.is_java != master.is_java)

    async def _read(self, reader: JavaClient, acknowledged: list[Acknowledged]) -> Account:
        """Let a consumer read all there is, and settle its account."""
        master = await self.lab.until_whole()
        total = 0
        for queue in range(QUEUES):
            fields = {"topic": TOPIC, "queueId": str(queue), "committed": "true"}
            answer = await self.lab.ask(master.address, RequestCode.GET_MAX_OFFSET, ext_fields=fields)
            total += int((answer.ext_fields or {})["offset"])
        began = time.monotonic()
        seen: list[Seen] = []
        while time.monotonic() - began < READ_SECONDS:
            seen = reader.seen()
            if len({(each.queue, each.offset) for each in seen}) >= total:
                break
            await asyncio.sleep(0.05)
        # All double deliveries have arrived by now: a consumer that stops has no message in flight.
        await asyncio.to_thread(reader.stop)
        seen = reader.seen()
        self.say(f"{reader.name} read {len(seen)} of {total} from {master.name} in {time.monotonic() - began:.1f} s")
        return account(f"{self.cast.java_version} {reader.name} at {master.name}", acknowledged, seen)


async def compare_members(lab: Lab, say: Callable[[str], None]) -> Comparison:
    """Compare all members' logs and epochs once the group is settled."""
    end = await lab.end_offset()
    members = list(lab.members.values())
    files = {member.name: read_epochs(member.epoch_file) for member in members}
    result = compare_epochs(files, java=[member.name for member in members if member.is_java], end=end)
    first, *others = members
    for other in others:
        differs = await asyncio.to_thread(first_difference, first.commit_log, other.commit_log, end)
        if differs is not None:
            result.mismatches.append(f"the logs of {first.name} and {other.name} differ at {differs} of {end}")
    say(f"{len(members)} logs of {end} bytes, epochs {files}, Java traps {dict(result.traps)}")
    return result


async def metadata_mismatches(lab: Lab, topics: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Return members without a topic or a consumer group; slaves have until their next copy (Java's: 10 s)."""
    wanted = [(RequestCode.GET_TOPIC_CONFIG, "topic", name) for name in topics]
    wanted += [(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, "group", name) for name in groups]
    missing: list[str] = []

    async def complete() -> bool | None:
        missing.clear()
        for member in lab.members.values():
            for code, key, name in wanted:
                answer = await lab.ask(member.address, code, ext_fields={key: name})
                if answer.code != ResponseCode.SUCCESS:
                    missing.append(f"{member.name} does not know {key} {name}: {answer.code} {answer.remark}")
        return True if not missing else None

    try:
        await lab.eventually(complete, "topics and groups at every member", COPY_SECONDS)
    except LabError:
        return missing
    return []


async def registration_mismatches(lab: Lab) -> list[str]:
    """Return mismatches at the NameServer, which must have the master under id 0 and all other members."""
    master = await lab.until_whole()
    everybody = {member.address for member in lab.members.values()}
    shown: dict[str, str] = {}

    async def right() -> bool | None:
        shown.clear()
        shown.update(await lab.registered())
        return True if shown.get("0") == master.address and set(shown.values()) == everybody else None

    try:
        await lab.eventually(right, "everybody at the NameServer", COPY_SECONDS)
    except LabError:
        return [f"the NameServer shows {shown}, {master.address} is master of {everybody}"]
    return []
