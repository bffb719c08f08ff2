"""A connection whose other end went without a word: a machine without power, or a load balancer that forgot the connection."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.reconcile.access import ClusterAccess
from tests.repository.made import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import aiohttp


@pytest.mark.parametrize("of", ["our client", "kopf"])
async def test_the_kernel_probes_every_connection_to_the_api(of: str) -> None:
    over, application = asyncio.Event(), web.Application()

    async def hold(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await over.wait()
        return answer

    application.router.add_get("/", hold)
    async with TestServer(application) as server:
        url = str(server.make_url("/"))
        async with _session(of, url) as session, session.get(url) as answer:
            assert answer.connection is not None
            assert answer.connection.transport is not None
            probing = answer.connection.transport.get_extra_info("socket")
            of_tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert probing.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert [probing.getsockopt(socket.IPPROTO_TCP, option) for option in of_tcp] == [1, 1, 3, 4000]
            over.set()


def _session(of: str, url: str) -> aiohttp.ClientSession:
    if of == "kopf":
        return ClusterAccess(url=url).kopf_credentials(lambda _: None).aiohttp_session
    return KubernetesApi.from_url(url)._open_session()


@pytest.fixture
def namespace() -> Iterator[str]:
    name = "bgsilent"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.real("netns", "nft")
def test_a_watch_and_a_pooled_connection_end_with_a_server_that_went_silently(namespace: str) -> None:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.kube.silent_server"]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120).stdout
    found = json.loads(said.splitlines()[-1])
    assert found["ended"] is not None, "the watch hangs on"
    assert found["left"] == 0, "the pooled connection hangs on"
