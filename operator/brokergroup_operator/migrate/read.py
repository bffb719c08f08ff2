"""Reads a running Java controller and its brokers. Nothing is changed anywhere, and mqadmin is not needed.

The controller's leader gives the state of every group in one answer (1006) and the next id of each (1012); the NameServers say
which groups there are, and in which cluster; each broker is asked who it is and what it does (26, 28, 907, 1007). The state is
read twice with a pause, to see whether it stands still.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.migrate.java_calls import CONTROLLER_ADDRESS, CONTROLLER_LOOK_UP, MigrationCallError
from brokergroup_operator.migrate.java_state import BrokerSaid, JavaGroup, JavaState, Reading, state_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokergroup_operator.migrate.java_calls import JavaCalls

SETTLE_SECONDS = 1.0


async def read_controller(
    calls: JavaCalls,
    *,
    controller: str,
    name_servers: Iterable[str] = (),
    broker_names: Iterable[str] = (),
    settle_seconds: float = SETTLE_SECONDS,
) -> Reading:
    """Everything about the groups named, or about all that the NameServers know. ``MigrationCallError`` if nobody leads."""
    metadata = await calls.metadata(controller)
    if metadata.leader is None:
        raise MigrationCallError(f"{controller} knows no leader: wait until its group has elected one, and try again")
    clusters = await _clusters(calls, name_servers)
    wanted = sorted(set(broker_names) or set(clusters))
    first = await read_states(calls, metadata.leader, wanted)
    await asyncio.sleep(settle_seconds)
    groups = [
        await _group(calls, metadata.leader, state, clusters.get(name, frozenset())) for name, state in first.items()
    ]
    last = await read_states(calls, metadata.leader, wanted)
    others = await read_states(calls, metadata.leader, set(clusters) - set(wanted))
    return Reading(
        controller=controller,
        leader=metadata.leader,
        peers=metadata.peers or (metadata.leader,),
        groups=tuple(_settled(group, last.get(group.state.broker_name)) for group in groups),
        unknown=tuple(name for name in wanted if name not in last),
        others=tuple(sorted(others)),
    )


async def read_state(calls: JavaCalls, leader: str, broker_name: str) -> JavaState | None:
    """One group, once."""
    return (await read_states(calls, leader, [broker_name])).get(broker_name)


async def ask_brokers(calls: JavaCalls, addresses: Mapping[int, str]) -> dict[int, BrokerSaid | str]:
    """Ask every broker of a group, side by side."""
    said = await asyncio.gather(*(ask_broker(calls, address) for address in addresses.values()))
    return dict(zip(addresses, said, strict=True))


async def ask_broker(calls: JavaCalls, address: str) -> BrokerSaid | str:
    """What a broker says of itself; why not, if it does not answer."""
    try:
        configuration = await calls.broker_configuration(address)
        epochs = await calls.epochs(address)
        status = await calls.ha_status(address)
        version = await calls.version(address)
    except MigrationCallError as error:
        return str(error)
    broker_id = configuration.get("brokerId", "")
    return BrokerSaid(
        address=address,
        cluster_name=configuration.get("brokerClusterName", ""),
        broker_name=configuration.get("brokerName", ""),
        slave_id=int(broker_id) if broker_id.isdecimal() and int(broker_id) > 0 else None,
        listed_controllers=configuration.get(CONTROLLER_ADDRESS, ""),
        looks_up_controllers=configuration.get(CONTROLLER_LOOK_UP, "false") == "true",
        version=version,
        last_epoch=max((entry.epoch for entry in epochs.epoch_list), default=0),
        max_offset=epochs.max_offset,
        acts_as_master=status.master,
        in_sync_slaves=status.in_sync_slave_nums,
    )


async def _clusters(calls: JavaCalls, name_servers: Iterable[str]) -> dict[str, frozenset[str]]:
    """Every brokerName at the NameServers, with the clusters that have one of that name."""
    found: dict[str, frozenset[str]] = {}
    for name_server in name_servers:
        info = await calls.clusters(name_server)
        for cluster_name, names in info.cluster_addr_table.items():
            for name in names:
                found[name] = found.get(name, frozenset()) | {cluster_name}
        for name, data in info.broker_addr_table.items():
            found[name] = found.get(name, frozenset()) | ({data.cluster} if data.cluster else frozenset())
    return found


async def read_states(calls: JavaCalls, leader: str, broker_names: Iterable[str]) -> dict[str, JavaState]:
    """The groups that the leader knows, by name, in one answer."""
    infos = await calls.sync_state_data(leader, broker_names)
    return {name: state_of(name, info) for name, info in sorted(infos.items())}


async def _group(calls: JavaCalls, leader: str, state: JavaState, cluster_names: frozenset[str]) -> JavaGroup:
    brokers = await ask_brokers(calls, state.addresses)
    group = JavaGroup(state=state, next_broker_id=1, cluster_names=cluster_names, brokers=brokers)
    next_broker_id = await calls.next_broker_id(leader, cluster_name=group.cluster_name, broker_name=state.broker_name)
    return replace(group, next_broker_id=next_broker_id)


def _settled(group: JavaGroup, last: JavaState | None) -> JavaGroup:
    if last is None:
        return replace(group, steady=False)
    return replace(group, state=last, steady=last == group.state)
