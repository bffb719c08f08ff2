"""Further keys of broker.conf from ConfigMaps (spec.configFrom), merged under spec.config. Pure.

What the API server checks of spec.config is checked here of a ConfigMap, which it does not check: a reserved key or a line break
in a value would reach the brokers. While one of them is missing or bad, no object of the group is changed; the condition says why.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api.bounds import MAX_CONFIG_ENTRIES
from brokergroup_operator.api.rules import RESERVED_CONFIG_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup

KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
VALUE: Final = re.compile(r"[^\r\n]{0,1024}")


def with_sources(group: BrokerGroup, found: Mapping[str, JsonObject | None]) -> tuple[BrokerGroup, str]:
    """The group with the keys of its ConfigMaps in spec.config, later ones and spec.config itself winning; and the complaint."""
    merged: dict[str, str] = {}
    for source in group.spec.config_from:
        name = source.config_map_ref.name
        config_map = found.get(name)
        if config_map is None:
            return group, f"spec.configFrom names ConfigMap {name}, which does not exist: create it, or take it out"
        values: dict[str, str] = config_map.get("data") or {}
        if complaint := _complaint(name, values):
            return group, complaint
        merged |= values
    merged |= group.spec.config
    if len(merged) > MAX_CONFIG_ENTRIES:
        return (
            group,
            f"spec.config and spec.configFrom have {len(merged)} keys together, expected at most {MAX_CONFIG_ENTRIES}",
        )
    return msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, config=merged)), ""


def _complaint(name: str, values: Mapping[str, str]) -> str:
    for key, value in sorted(values.items()):
        if instead := RESERVED_CONFIG_KEYS.get(key):
            return f"ConfigMap {name}: {key} is set by the operator: {instead}"
        if not KEY.fullmatch(key):
            return f"ConfigMap {name}: {key!r} is no Java property name"
        if not VALUE.fullmatch(value):
            return f"ConfigMap {name}: {key} has a value of {len(value)} characters, expected one line of at most 1024"
    return ""
