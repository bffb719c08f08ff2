"""Reads the final master's log back, by the ordinary pull request, queue by queue.

The pull is the proof: a replica shows consumers only what lies below its confirm offset, so a message found here is one that
every replica in sync has.
"""

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.message_record import decode_records

_BATCH = 32
_TIMEOUT_SECONDS = 5.0


class ReadbackError(Exception):
    """The master did not let its log be read whole: no verdict about lost messages is possible."""


async def read_keys(address: str, topic: str, queues: int) -> set[str]:
    """The keys of all messages of a topic in the log of the broker at `address` (`host:port`).

    A key is what the body begins with, up to the first dot. Raises ReadbackError when a queue can't be read to its end.
    """
    client = RemotingClient()
    try:
        queues_keys = [await _read_queue(client, address, topic, queue_id) for queue_id in range(queues)]
    except RemotingError as error:
        raise ReadbackError(f"{address}: topic {topic} not read to its end: {error}") from error
    finally:
        await client.close()
    return set().union(*queues_keys)


async def _read_queue(client: RemotingClient, address: str, topic: str, queue_id: int) -> set[str]:
    end = await _max_offset(client, address, topic, queue_id)
    keys: set[str] = set()
    offset = 0
    while offset < end:
        answer = await client.invoke(address, _pull(topic, queue_id, offset), timeout_seconds=_TIMEOUT_SECONDS)
        fields = answer.ext_fields or {}
        next_offset = int(fields.get("nextBeginOffset", offset))
        if answer.code == ResponseCode.SUCCESS and answer.body:
            keys.update(message.body.split(b".", 1)[0].decode() for message in decode_records(answer.body))
        if next_offset <= offset:
            raise ReadbackError(
                f"{address}: queue {queue_id} of topic {topic} ends at {end}, but the pull at {offset} answered "
                f"code {answer.code} ({answer.remark}) and did not move on"
            )
        offset = next_offset
    return keys


async def _max_offset(client: RemotingClient, address: str, topic: str, queue_id: int) -> int:
    fields = {"topic": topic, "queueId": str(queue_id), "committed": "true"}
    answer = await client.invoke(
        address, request(RequestCode.GET_MAX_OFFSET, ext_fields=fields), timeout_seconds=_TIMEOUT_SECONDS
    )
    if answer.code != ResponseCode.SUCCESS:
        raise ReadbackError(
            f"{address}: max offset of queue {queue_id} of {topic}: code {answer.code} ({answer.remark})"
        )
    return int((answer.ext_fields or {})["offset"])


def _pull(topic: str, queue_id: int, offset: int) -> RemotingCommand:
    fields = {
        "consumerGroup": "demo-readback",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(_BATCH),
        # Bit 4: the subscription travels with the request, so that no consumer has to be registered first.
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return request(RequestCode.PULL_MESSAGE, ext_fields=fields)
