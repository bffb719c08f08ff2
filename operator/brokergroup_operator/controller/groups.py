"""Every group this plane has met, by BrokerGroup; met means declared in the directory, or spoken of by a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.controller.group import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from brokergroup_operator.controller.directory import GroupBinding, GroupDirectory, Peer
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.observer import Observer
    from brokergroup_operator.records.store import GroupKey, RecordStore


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
        self._groups: dict[GroupKey, Group] = {}

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
                on_change=self._on_change,
            )
            group.leaving_hosts = self._directory.leaving_hosts(binding.key)
            self._groups[binding.key] = group
        elif group.binding is not binding:
            group.binding = binding
            group.gone = False
        return group

    def meet_all(self) -> None:
        """Meet every group of the directory, and forget those that are declared no more."""
        for binding in self._directory.bindings():
            self.meet(binding)
        if len(self._groups) > len(self._directory.bindings()):
            for key, group in list(self._groups.items()):
                group.gone = self._directory.binding(key) is None
                if group.gone and group.master_change is None:
                    del self._groups[key]
