"""A master in the wanted zone, if that costs little: clients and consumers near the master, or a zone about to be drained.

Among the candidates in the highest epoch whose log ends at most `zone_lag_bytes` before the longest, the most wanted zone
wins; within one zone the most data.

Why that is safe: a policy is asked only about candidates that hold every acknowledged message (module docstring of the
package), so a shorter log lacks only what nobody was promised; its senders were told that it failed, or are told nothing
and send again. Epochs are not traded: a log of a lower epoch may lack the beginning of the present one, which costs a
truncation on everybody else. The bound keeps small what senders must send again and what the others must fetch again.
It is *not* safe where a message is acknowledged by a number of replicas (durability `Fast`): there the longest log is
all there is, and this policy must not be chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller_core.policies.most_data import taste, zone_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller_core.model import BrokerGroupRecord, LiveReplica
    from controller_core.settings import ControllerSettings

NAME = "preferred-zone"


def choose(candidates: Sequence[LiveReplica], record: BrokerGroupRecord, settings: ControllerSettings) -> LiveReplica:
    """Return the candidate in the most wanted zone among those with nearly the most data."""
    epoch, longest = max((one.epoch, one.max_offset) for one in candidates)
    near = [one for one in candidates if one.epoch == epoch and one.max_offset >= longest - settings.zone_lag_bytes]
    return min(
        near,
        key=lambda one: (
            zone_rank(one.broker_id, record=record, settings=settings),
            -one.max_offset,
            *taste(one, record=record, settings=settings),
        ),
    )
