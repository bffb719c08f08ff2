"""Who is taken for dead, and who is not: upstream issues about heartbeats, channels and scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.upstream.lab import WireGroup


async def test_issue_11045_late_close_does_not_evict_a_healthy_master(group: WireGroup) -> None:
    """#11045 (open): the entry of a broker stays bound to its first channel, whose late close evicts a healthy master."""
    one, two = await group.in_sync(2)
    two.keep_beating()
    await one.heartbeat(via="second")
    await one.disconnect("main")
    if group.controller.is_java:
        after = await group.until(lambda state: state.master_epoch > 1, "a needless election")
        assert (after.master, after.members) == (2, {2})
        return
    one.keep_beating(via="second")
    after = await group.stays(lambda state: (state.master, state.master_epoch) == (1, 1))
    assert after.members == {1, 2}
    # And the close of the connection that carries its heartbeats now does count.
    await one.die()
    after = await group.until(lambda state: state.master == 2, "the slave is master")
    assert after.master_epoch == 2
