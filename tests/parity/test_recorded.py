"""The embedded API answers as recorded. `make proofs LANE=parity` asks a kube-apiserver the same and finds no difference.

Conversations about our own kinds are left to the lane: their answers change with the kinds. `UPDATE_GOLDEN=1` writes the answers
anew: read the difference, and run the lane.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
import pytest_asyncio

from kube_sandbox.api_server.server import SandboxApiServer
from tests.parity import core_kinds, custom_objects
from tests.parity.peer import Peer
from tests.parity.run import CONVERSATIONS, open_namespace, serve_kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.parity.run import Conversation

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANSWERS = Path(__file__).parent / "answers"
OURS = (custom_objects.tables, custom_objects.watches_of_the_operator)
RECORDED = [
    conversation
    for conversation in CONVERSATIONS
    if conversation.__module__ in (core_kinds.__name__, custom_objects.__name__) and conversation not in OURS
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def peer() -> AsyncIterator[Peer]:
    server = SandboxApiServer()
    await server.start()
    async with aiohttp.ClientSession() as session:
        peer = Peer(server.url, "", session)
        await serve_kinds(peer)
        yield peer
    await server.stop()


@pytest.mark.parametrize("conversation", RECORDED, ids=lambda conversation: conversation.__name__)
async def test_the_answers_are_the_recorded_ones(peer: Peer, conversation: Conversation) -> None:
    peer.namespace = conversation.__name__.replace("_", "-")
    await open_namespace(peer)
    await conversation(peer)
    said = [json.dumps(answer, ensure_ascii=False, sort_keys=True) for answer in peer.said]
    file = ANSWERS / f"{conversation.__name__}.jsonl"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text("".join(f"{line}\n" for line in said), encoding="utf-8")
    assert said == file.read_text(encoding="utf-8").splitlines()
