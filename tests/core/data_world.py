"""A broker group with its data: logs, links, acknowledgements, disks that are lost, a record that is restored.

`small_world.py` checks each decision alone. This world checks the purpose of all decisions: every acknowledged message is in
the log of every acting master (I4), and no replica is barred that lost no data. The controller is the real
`step` with its real record; the brokers are a model of what Java's brokers do (rebuilt):

* A master accepts a message while its set, or the one it has asked for, has `min` members, and acknowledges it when all of both
  have it (`AutoSwitchHAService.inSyncReplicasNums`, `getSyncStateSet`). It acknowledges as early as possible: the worst case.
* A 1001 arrives late, or never, or its answer is lost; then it stays pending, and is sent again when the
  slave has caught up again. It is no slower than its master's next heartbeat (they share a connection, and each group's
  requests are decided in order), and does not outlive the processes that it names (Java waits 3 s for the answer).
* A slave that links to its master truncates to their common prefix, and loses epochs that begin there; the next frame
  brings the master's epoch. It learns of a new master at any time later, or never.
* A process dies and returns with its disk, without it, or with a part of it. Its last report before its death matches its
  disk: heartbeats are that exact (`holdings.py`); between two of them a disk could lose data that was never reported.
* The controller may suspect any replica at any time. Heartbeats arrive at any time.
* The controller may grant a master the next epoch. A member that it takes for dead may be removed for good, with its
  disk, if the core lets it.

* A master that shrinks first (Java 5.5.0) continues without a member at once when that link breaks, and acknowledges what
  waited. In the model its 1001 arrives in the same moment: messages of a master that dies in between may be lost
  (docs/concepts/architecture.md).

Not in the model: power loss, a second disk.
"""

from collections.abc import Iterator

from controller_core.decision import Decision, SeatsLost
from controller_core.holdings import News, demand_of, report_is_news, told_mark
from controller_core.model import BrokerGroupRecord, LiveReplica, Mark, Replica
from controller_core.requests import (
    AlterSyncStateSet,
    ElectMaster,
    Holding,
    RegisterBroker,
    RemoveMember,
    RenewMaster,
    ReportHoldings,
)
from controller_core.step import step
from tests.core.data_model import IDS, NOBODY, BarredError, Broker, Left, Log, MessageLostError, Rules, Told, World


def start(rules: Rules, left: Left) -> World:
    """Return the first state: all in sync under master 1, one message acknowledged and reported."""
    replicas = {one: Replica(one, f"{one}:1;{one}", f"{one}:1", registered=True) for one in IDS}
    record = BrokerGroupRecord("cl", "bn", 4, replicas, 1, 1, frozenset(IDS), 2)
    slave = Broker(log=((1, 0),), file_epoch=1, epoch=1, linked=True)
    master = slave._replace(master=True, linked=False, members=frozenset(IDS), set_epoch=2)
    world = World(record, (master, slave, slave), (None, None, None), frozenset({0}), left)
    for one in IDS:
        world = beat(world.with_told(one, Told(LiveReplica(one), as_member=True)), one, rules)
    return world


def ways(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    """Return all possible next events."""
    for one in IDS:
        if one in world.record.replicas:
            yield from _of_broker(world, one, rules)
            yield from _removal(world, one, rules)
    elected = elect(world, rules)
    if elected is not None:
        yield "elect", elected
    yield from _renewal(world, rules)
    if world.left.restores and world.backup is None:
        yield "backup", world._replace(backup=world.record)
    if world.backup is not None and world.left.restores and _somebody_will_tell(world, world.backup):
        # The operator restarts on the restored record and has heard no broker.
        left = world.left._replace(restores=0, suspicions=0)
        yield "restore", world._replace(record=world.backup, told=(None, None, None), left=left)


def _of_broker(world: World, one: int, rules: Rules) -> Iterator[tuple[str, World]]:
    broker, left = world.broker(one), world.left
    if not broker.up:
        yield f"restart {one}", restart(world, one, broker.log, rules)
        if left.spoilings:
            fewer = world._replace(left=left._replace(spoilings=left.spoilings - 1))
            for kept in range(len(broker.log)):
                yield f"restart {one} with {kept}", restart(fewer, one, broker.log[:kept], rules, spoilt=True)
        return
    yield f"beat {one}", beat(world, one, rules)
    yield f"poll {one}", poll(world, one)
    if left.crashes and not _alone_knows_more(world, broker):
        yield f"crash {one}", crash(beat(world, one, rules), one)
    if left.suspicions and world.told[one - 1] is not None:
        doubting = world._replace(left=left._replace(suspicions=left.suspicions - 1))
        yield f"suspect {one}", _after_loss(doubting.with_told(one, None), one)
    if broker.master:
        yield from _of_master(world, one, rules)
    elif broker.epoch:
        yield from _of_slave(world, one)


def _removal(world: World, one: int, rules: Rules) -> Iterator[tuple[str, World]]:
    """Delete a pod with its volume; the operator removes the member."""
    broker = world.broker(one)
    if broker.up or not world.left.removals:
        return
    decision = step(world.record, RemoveMember(broker_id=one), world.live, rules.settings)
    if decision.changed and decision.record is not None:
        left = world.left._replace(removals=world.left.removals - 1)
        yield f"remove {one}", _recorded(world._replace(left=left), decision.record)


def _renewal(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    """Repair a slave on a wrong link, or take one out of the set, linked or not: the brokers learn the next epoch one by one."""
    record, left = world.record, world.left
    master = record.granted_master_id
    if not left.renewals or master is None or record.master_epoch >= rules.last_epoch:
        return
    for without in (NOBODY, *(frozenset({one}) for one in sorted(record.sync_state_set - {master}))):
        request = RenewMaster(broker_id=master, master_epoch=record.master_epoch, without=without)
        decision = step(record, request, world.live, rules.settings)
        if decision.changed and decision.record is not None:
            renewed = _recorded(world._replace(left=left._replace(renewals=left.renewals - 1)), decision.record)
            yield " ".join(["renew", *(f"without {one}" for one in without)]), renewed


def _somebody_will_tell(world: World, backup: BrokerGroupRecord) -> bool:
    """Whether the restore of an older record can be noticed: a running broker has a newer epoch, or none has (F28's residual)."""
    newer = any(max(broker.epoch, broker.file_epoch) > backup.master_epoch for broker in world.brokers)
    tells = any(broker.up and broker.file_epoch > backup.master_epoch for broker in world.brokers)
    return backup.master_epoch < world.record.master_epoch and (tells or not newer)


def _alone_knows_more(world: World, broker: Broker) -> bool:
    """Whether this broker knows a newer epoch than the restored record: such brokers stay up in the model (F28's residual)."""
    return world.backup is not None and _is_restored(world) and broker.file_epoch > world.backup.master_epoch


def _is_restored(world: World) -> bool:
    return world.backup is not None and not world.left.restores


def _has_not_heard_all(world: World) -> bool:
    """Whether a new operator still lacks a running broker's heartbeat; until then it elects and notifies no master (I17)."""
    return _is_restored(world) and any(
        broker.up and (line is None or not line.replica.has_reported)
        for broker, line in zip(world.brokers, world.told, strict=True)
    )


def _of_master(world: World, one: int, rules: Rules) -> Iterator[tuple[str, World]]:
    broker, left = world.broker(one), world.left
    if left.messages and max(len(broker.members), len(broker.asked)) >= rules.settings.min_in_sync_replicas:
        message = 100 - left.messages
        written = broker._replace(log=(*broker.log, (broker.epoch, message)), file_epoch=broker.epoch)
        yield (
            f"write {one}",
            _acknowledge(world._replace(left=left._replace(messages=left.messages - 1)).with_broker(one, written)),
        )
    if broker.asked:
        if broker.asking:
            yield from _arrivals(world, one, rules)
        elif all(_caught_up(world, other, one) for other in broker.asked - broker.members):
            yield f"{one} asks again", world.with_broker(one, broker._replace(asking=True))
        return
    for other in IDS:
        if other not in broker.members and _caught_up(world, other, one):
            asked = broker._replace(asked=broker.members | {other}, asking=True)
            yield f"{one} asks for {other}", world.with_broker(one, asked)
        if other not in broker.members - {one} or _follows(world, other, one):
            continue
        if rules.masters_shrink_first:
            yield f"{one} goes on without {other}", _goes_on_without(world, one, other, rules)
        else:
            asked = broker._replace(asked=broker.members - {other}, asking=True)
            yield f"{one} drops {other}", world.with_broker(one, asked)


def _goes_on_without(world: World, one: int, other: int, rules: Rules) -> World:
    """Java 5.5.0: when a link breaks the master's own set shrinks at once, before the controller's answer."""
    broker = world.broker(one)
    alone = broker._replace(members=broker.members - {other})
    decision = _ask(world, one, alone.members, rules)
    if decision.changed and decision.record is not None:
        world = _recorded(world, decision.record)
        alone = alone._replace(set_epoch=decision.record.sync_state_set_epoch)
    return _acknowledge(world.with_broker(one, alone))


def _ask(world: World, one: int, members: frozenset[int], rules: Rules) -> Decision:
    broker = world.broker(one)
    request = AlterSyncStateSet(
        master_broker_id=one,
        master_epoch=broker.epoch,
        sync_state_set=members,
        sync_state_set_epoch=broker.set_epoch,
    )
    return step(world.record, request, world.live, rules.settings)


def _arrivals(world: World, one: int, rules: Rules) -> Iterator[tuple[str, World]]:
    """Deliver the 1001; its answer arrives or not. After a refusal the master keeps asking or gives up."""
    broker = world.broker(one)
    decision = _ask(world, one, broker.asked, rules)
    if not decision.changed:
        return
    assert decision.record is not None
    committed = _recorded(world, decision.record)
    told = broker._replace(
        members=decision.record.sync_state_set,
        asked=NOBODY,
        asking=False,
        set_epoch=decision.record.sync_state_set_epoch,
    )
    yield f"1001 of {one}", _acknowledge(committed.with_broker(one, told))
    if world.left.lost_answers:
        fewer = world.left._replace(lost_answers=world.left.lost_answers - 1)
        yield (
            f"1001 of {one}, answer lost",
            committed._replace(left=fewer).with_broker(one, broker._replace(asking=False)),
        )


def _of_slave(world: World, one: int) -> Iterator[tuple[str, World]]:
    slave = world.broker(one)
    for other in IDS:
        master = world.broker(other)
        if other == one or not (master.up and master.master and master.epoch == slave.epoch):
            continue
        if not slave.linked:
            kept = _common(slave.log, master.log)
            cut = slave._replace(log=kept, file_epoch=kept[-1][0] if kept else -1, linked=True)
            yield f"{one} links to {other}", _acknowledge(world.with_broker(one, cut))
        elif len(slave.log) < len(master.log):
            grown = master.log[: len(slave.log) + 1]
            yield (
                f"{one} gets",
                _acknowledge(world.with_broker(one, slave._replace(log=grown, file_epoch=grown[-1][0]))),
            )
        elif slave.file_epoch != slave.epoch:
            yield f"{one} gets a frame", world.with_broker(one, slave._replace(file_epoch=slave.epoch))


def _follows(world: World, slave: int, master: int) -> bool:
    one, other = world.broker(slave), world.broker(master)
    return slave != master and one.up and not one.master and one.linked and one.epoch == other.epoch


def _caught_up(world: World, slave: int, master: int) -> bool:
    return _follows(world, slave, master) and len(world.broker(slave).log) >= len(world.broker(master).log)


def _common(one: Log, other: Log) -> Log:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


def _acknowledge(world: World) -> World:
    """Let every master acknowledge what all its counted members have."""
    found = set(world.acknowledged)
    for one in IDS:
        broker = world.broker(one)
        if not (broker.up and broker.master):
            continue
        waited_for = (broker.members | broker.asked) - {one}
        if not all(_follows(world, other, one) for other in waited_for):
            continue
        end = min([len(broker.log), *(len(world.broker(other).log) for other in waited_for)])
        # No master acknowledges an earlier master's messages any more, though they stay in the log.
        found.update(message for epoch, message in broker.log[:end] if epoch == broker.epoch)
    return world._replace(acknowledged=frozenset(found)) if found != world.acknowledged else world


def beat(world: World, one: int, rules: Rules) -> World:
    """Put a heartbeat into the table, and its news into the record at once."""
    broker, line = world.broker(one), world.told[one - 1]
    if broker.asking:
        world = world.with_broker(one, broker._replace(asking=False))
    before = line.replica if line is not None else LiveReplica(one)
    reported, length = broker.file_epoch, len(broker.log)
    first = min(before.epoch_first_offset, length) if before.epoch == reported and before.has_reported else length
    replica = LiveReplica(one, epoch=reported, max_offset=length, epoch_first_offset=first)
    world = world.with_told(one, Told(replica, as_member=True))
    return _report(world, one, rules) if rules.seat_loss or rules.epoch_floor else world


def _report(world: World, one: int, rules: Rules) -> World:
    line = world.told[one - 1]
    assert line is not None
    counts = (line.as_member and one in world.record.sync_state_set) or line.replica.epoch == world.record.master_epoch
    holding = Holding(
        broker_id=one,
        epoch=line.replica.epoch,
        max_offset=line.replica.max_offset,
        known=Mark(one),
        sure=told_mark(line.replica) if counts else Mark(one),
        seen=demand_of(world.record, one),
    )
    news = report_is_news(world.record, holding, rules.settings)
    wanted = rules.epoch_floor if news is News.FLOOR else rules.seat_loss
    if news is News.NOTHING or not wanted:
        return world
    decision = step(world.record, ReportHoldings(holdings=(holding,)), world.live, rules.settings)
    assert decision.record is not None
    for event in decision.events:
        # After a restore the marks are as old as the record; wrong ones are dropped when the record proves old.
        if isinstance(event, SeatsLost) and not world.broker(one).spoilt and not _is_restored(world):
            raise BarredError(f"{one} lost its seat: {decision.why}")
    return _recorded(world, decision.record)


def poll(world: World, one: int) -> World:
    """Poll 1004: learn the master and its set, and take the role."""
    broker, record = world.broker(one), world.record
    if _has_not_heard_all(world):
        return world
    if record.granted_master_id is not None and record.master_epoch > broker.epoch:
        if record.granted_master_id != one:
            slave = broker._replace(
                master=False,
                epoch=record.master_epoch,
                linked=False,
                members=NOBODY,
                asked=NOBODY,
                asking=False,
                set_epoch=0,
            )
            return world.with_broker(one, slave)
        if record.master_epoch < broker.file_epoch:
            return world  # Java refuses in its HA service
        missing = world.acknowledged - {message for _, message in broker.log}
        if missing:
            raise MessageLostError(f"{one} acts as master of epoch {record.master_epoch} without {sorted(missing)}")
        master = broker._replace(
            master=True,
            epoch=record.master_epoch,
            file_epoch=record.master_epoch,
            linked=False,
            members=record.sync_state_set,
            asked=NOBODY,
            asking=False,
            set_epoch=record.sync_state_set_epoch,
        )
        return _acknowledge(world.with_broker(one, master))
    newer_set = record.sync_state_set_epoch > broker.set_epoch
    if broker.master and record.granted_master_id == one and record.master_epoch == broker.epoch and newer_set:
        told = broker._replace(
            members=record.sync_state_set, asked=NOBODY, asking=False, set_epoch=record.sync_state_set_epoch
        )
        return _acknowledge(world.with_broker(one, told))
    return world


def crash(world: World, one: int) -> World:
    """End the process and all links to it."""
    left = world.left._replace(crashes=world.left.crashes - 1)
    epoch, was_master = world.broker(one).epoch, world.broker(one).master
    world = world._replace(left=left).with_broker(
        one,
        world.broker(one)._replace(
            up=False, master=False, epoch=0, linked=False, members=NOBODY, asked=NOBODY, asking=False, set_epoch=0
        ),
    )
    for other in IDS:
        if one in world.broker(other).asked:
            world = world.with_broker(other, world.broker(other)._replace(asking=False))
        if was_master and not world.broker(other).master and world.broker(other).epoch == epoch:
            world = world.with_broker(other, world.broker(other)._replace(linked=False))
    return _after_loss(world.with_told(one, None), one)


def restart(world: World, one: int, log: Log, rules: Rules, *, spoilt: bool = False) -> World:
    """Start a new process: 1003 with the disk as it is now. Its first heartbeat comes later."""
    broker = world.broker(one)
    file_epoch = (log[-1][0] if log else -1) if spoilt else broker.file_epoch
    world = world.with_broker(
        one, broker._replace(up=True, log=log, file_epoch=file_epoch, spoilt=broker.spoilt or spoilt)
    )
    request = RegisterBroker(cluster_name="cl", broker_name="bn", broker_id=one, broker_address=f"{one}:1")
    decision = step(world.record, request, world.live, rules.settings)
    assert decision.record is not None
    world = _recorded(world, decision.record)
    new_process = Told(LiveReplica(one), as_member=one in decision.record.sync_state_set)
    return _after_loss(world, one).with_told(one, new_process)


def elect(world: World, rules: Rules) -> World | None:
    """Let the controller elect if the master is not alive or there is none."""
    record, live = world.record, world.live
    if record.granted_master_id in live or record.master_epoch >= rules.last_epoch:
        return None
    if _has_not_heard_all(world):
        return None
    if not rules.epoch_floor:
        live = {key: one._replace(epoch=min(one.epoch, record.master_epoch)) for key, one in live.items()}
    incumbents = [(world.broker(one).epoch, one) for one in live if world.broker(one).up and world.broker(one).master]
    incumbent = max(incumbents)[1] if incumbents else None
    decision = step(record, ElectMaster(incumbent=incumbent), live, rules.settings)
    if not decision.changed or decision.record is None:
        return None
    return _recorded(world, decision.record)


def _recorded(world: World, record: BrokerGroupRecord) -> World:
    """Commit. A new member of the set reports as a member from its next heartbeat on; after an election no member does yet."""
    if record.master_epoch != world.record.master_epoch and record.master_broker_id is not None:
        joined = frozenset(IDS)
    else:
        joined = record.sync_state_set - world.record.sync_state_set
    told = tuple(
        line._replace(as_member=False) if line is not None and line.replica.broker_id in joined else line
        for line in world.told
    )
    return world._replace(record=record, told=told)


def _after_loss(world: World, one: int) -> World:
    """As `HeartbeatTable`: only the loss of a replica that may have been master makes what the others told stale."""
    may_write = one == world.record.master_broker_id or one in world.record.unfenced
    return _stale(world) if may_write else world


def _stale(world: World) -> World:
    """Mark all earlier reports as stale."""
    lines = (
        line._replace(replica=line.replica._replace(fresh=False)) if line is not None else None for line in world.told
    )
    return world._replace(told=tuple(lines))
