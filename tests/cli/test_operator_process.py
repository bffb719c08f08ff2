"""The operator process, wired as a pod runs it, at the embedded API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import yaml

from brokergroup_operator.cli.operator_command import OperatorOptions
from brokergroup_operator.cli.operator_process import run_operator
from brokergroup_operator.controller.settings import SecuritySettings
from brokergroup_operator.fence.watchman import API_SILENCE, controller_question
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.errors import RemotingError
from tests.our_kinds import server_with_our_kinds
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand

DEADLINE_SECONDS = 60.0


def kubeconfig(url: str, folder: Path) -> Path:
    file = folder / "kubeconfig"
    entries = {
        "clusters": [{"name": "embedded", "cluster": {"server": url}}],
        "users": [{"name": "anybody", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "embedded", "user": "anybody"}}],
    }
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "here", **entries}))
    return file


async def fields_for_fences(address: str) -> dict[str, str]:
    """Return what a fence hears from the operator once its API has answered."""
    client = RemotingClient()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    answer: RemotingCommand = await client.invoke(
                        address, controller_question("orders"), timeout_seconds=2.0
                    )
                except RemotingError:  # it does not listen yet
                    await asyncio.sleep(0.05)
                    continue
                fields = dict(answer.ext_fields or {})
                if len(fields.get(API_SILENCE, "")) < 10:
                    return fields
                await asyncio.sleep(0.05)
    finally:
        await client.close()


async def test_its_answers_to_the_fences_say_for_how_long_it_has_not_reached_the_api(tmp_path: Path) -> None:
    """A plane without that field keeps a master alive that is cut off with it, while another plane elects (docs/adr/0008)."""
    address = f"127.0.0.1:{free_port()}"
    async with server_with_our_kinds() as server:
        options = OperatorOptions(
            kubeconfig=kubeconfig(server.url, tmp_path),
            listen=address,
            advertise=address,
            controller_addresses=[address],
        )
        stop = asyncio.Event()
        running = asyncio.create_task(run_operator(options, SecuritySettings(open_admin=True), None, stop))
        try:
            fields = await fields_for_fences(address)
        finally:
            stop.set()
            await running
    assert int(fields[API_SILENCE]) < DEADLINE_SECONDS * 1000
