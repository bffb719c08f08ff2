"""The sandbox held honest: each conversation of tests/parity with the embedded API and with a real kube-apiserver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.parity.run import CONVERSATIONS, compare

if TYPE_CHECKING:
    from tests.parity.run import Conversation
    from tests.real.parts.kubernetes_api import KubeApiserver

pytestmark = pytest.mark.real("kube-apiserver")


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.__name__)
async def test_both_say_the_same(kube_apiserver: KubeApiserver, conversation: Conversation) -> None:
    requests, differences, _ = await compare(kube_apiserver, conversation)
    assert requests > 0
    assert not differences, "\n".join(differences)
