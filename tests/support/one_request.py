"""One request over a connection of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.signature import sign_command

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.signature import Credentials


async def answer_to(
    address: str, command: RemotingCommand, *, signed_as: Credentials | None = None, timeout_seconds: float = 10.0
) -> RemotingCommand:
    """Return the answer, whatever its code is; RemotingError if there is none."""
    client = RemotingClient()
    try:
        sent = command if signed_as is None else sign_command(command, signed_as)
        return await client.invoke(address, sent, timeout_seconds=timeout_seconds)
    finally:
        await client.close()
