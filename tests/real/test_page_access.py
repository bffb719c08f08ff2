"""Access to the live page by a real kube-apiserver: tokens of service accounts with and without rights."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.page.access import KubernetesTokens, Sessions, Viewer

if TYPE_CHECKING:
    from tests.support.kube_apiserver import KubeApiserver

pytestmark = pytest.mark.real("kube-apiserver")


def account(server: KubeApiserver, namespace: str, name: str) -> str:
    """A service account and a token of it."""
    server.must("create", "serviceaccount", name, "-n", namespace)
    return server.must("create", "token", name, "-n", namespace).strip()


async def test_a_token_opens_what_its_owner_may_list(with_kinds: KubeApiserver, namespace: str) -> None:
    server = with_kinds
    everywhere, here, nowhere = (account(server, namespace, name) for name in ("everywhere", "here", "nowhere"))
    may_list = ("--verb=list", "--resource=brokergroups.brokergroup.dev")
    server.must("create", "clusterrole", f"see-{namespace}", *may_list)
    role = f"--clusterrole=see-{namespace}"
    server.must("create", "clusterrolebinding", f"see-{namespace}", role, f"--serviceaccount={namespace}:everywhere")
    server.must("create", "rolebinding", "see", role, f"--serviceaccount={namespace}:here", "-n", namespace)
    user = f"system:serviceaccount:{namespace}"
    async with KubernetesApi.from_kubeconfig(server.kubeconfig) as api:
        sessions = Sessions(KubernetesTokens(api, None, lambda: frozenset({namespace, "default"})))
        assert await sessions.viewer_of_token(everywhere) == Viewer(f"{user}:everywhere")
        assert await sessions.viewer_of_token(here) == Viewer(f"{user}:here", frozenset({namespace}))
        assert await sessions.viewer_of_token(nowhere) is None
        assert await sessions.viewer_of_token(f"{everywhere[:-4]}AAAA") is None
        logged_in = await sessions.log_in(here)
        assert logged_in is not None
        server.must("delete", "serviceaccount", "here", "-n", namespace)
        async with asyncio.timeout(60):  # the API server believes a token for some 10 s without looking
            while await sessions.viewer_of_token(here) is not None:  # noqa: ASYNC110 - the API server sends no event of it
                await asyncio.sleep(1.0)
