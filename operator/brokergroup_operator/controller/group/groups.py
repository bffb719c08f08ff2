"""Every group this plane has met, by BrokerGroup; met means declared in the directory, or spoken of by a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.controller.group.group import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from brokergroup_operator.controller.directory.group_directory import GroupBinding, GroupDirectory, Peer
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.observer import Observer
    from brokergroup_operator.records.store import GroupKey, RecordStore
    from controller_core.model import BrokerGroupRecord


class Groups:
    """The registry. Iterating it is safe while groups are met."""

    def __init__(
        self,
        *,
        store: RecordStore,
        directory: GroupDirectory,
        settings: PlaneSettings,
        observer: Observer,
        on_change: Callable[[Group], None],
    ) -> None:
        self._store = store
        self._directory = directory
        self._settings = settings
        self._observer = observer
        self._on_change = on_change
        # The members that the records have at each address; and the record by which each group's stand there.
        self._members_at: dict[str, dict[tuple[GroupKey, int], Group]] = {}
        self._indexed: dict[GroupKey, BrokerGroupRecord] = {}
        self._groups: dict[GroupKey, Group] = {}
        self._met_revision = -1
        directory.subscribe_given_way(self._forget)

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def get(self, key: GroupKey) -> Group | None:
        """The group of this key, if it is declared in the directory now."""
        binding = self._directory.binding(key)
        return self.meet(binding) if binding is not None else None

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> Group | None:
        """The group a request is about."""
        binding = self._directory.find(broker_name, cluster_name=cluster_name, peer=peer)
        return self.meet(binding) if binding is not None else None

    def meet(self, binding: GroupBinding) -> Group:
        """The group of this binding, whose wishes may have changed."""
        group = self._groups.get(binding.key)
        if group is None:
            group = Group(
                binding,
                store=self._store,
                settings=self._settings,
                observer=self._observer,
                on_change=self._changed,
            )
            group.pods.take(self._directory, binding.key)
            self._groups[binding.key] = group
        elif group.binding is not binding:
            group.bind(binding)
        return group

    def meet_all(self) -> None:
        """Meet every group of the directory, and forget those that are declared no more; at once where nothing has changed."""
        if self._directory.revision == self._met_revision:
            return
        revision = self._directory.revision
        for binding in self._directory.bindings():
            self.meet(binding)
        undeclared = [group for key, group in self._groups.items() if self._directory.binding(key) is None]
        for group in undeclared:
            group.undeclared()
            if group.master_change is None:
                self._forget(group.key)
        if all(group.key not in self._groups for group in undeclared):
            self._met_revision = revision

    def members_at(self, address: str) -> list[tuple[Group, int]]:
        """The members, by group and broker id, that the records have at this address."""
        return [(group, broker_id) for (_, broker_id), group in self._members_at.get(address, {}).items()]

    def _forget(self, key: GroupKey) -> None:
        if (group := self._groups.pop(key, None)) is not None:
            group.undeclared()
            self._index(group, None)

    def _changed(self, group: Group) -> None:
        if group.record is not None and group.record.has_registered:
            self._directory.registered(group.binding)
        if self._groups.get(group.key) is group:  # and not one that is declared no more, whose last tasks still run
            self._index(group, group.record)
        self._on_change(group)

    def _index(self, group: Group, record: BrokerGroupRecord | None) -> None:
        """Let the index say what this record says of where the group's members are."""
        before = self._indexed.pop(group.key, None)
        if record is not None:
            self._indexed[group.key] = record
        if before is record:
            return
        for replica in before.replicas.values() if before is not None else ():
            there = self._members_at[replica.address]
            del there[group.key, replica.broker_id]
            if not there:
                del self._members_at[replica.address]
        for replica in record.replicas.values() if record is not None else ():
            self._members_at.setdefault(replica.address, {})[group.key, replica.broker_id] = group
