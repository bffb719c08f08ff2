"""A renewed client certificate of Java brokers whose controllers ask for one: a running operator restarts them, under load."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from brokergroup_operator.demo.client import read_keys
from brokergroup_operator.kube.resources import EVENTS
from rocketmq_remoting.tls import ClientTls, TlsFiles
from tests.e2e.conftest import JAVA_MARKS
from tests.e2e.house import NAMESPACE
from tests.e2e.stories import holds, pod_uids, up_to_date
from tests.e2e.test_java_rotation import (
    QUEUES,
    TOPIC,
    load_of,
    make_topic,
    secret_data,
    sends_more,
    verifying_group,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.security.certificates import Authority

pytestmark = JAVA_MARKS
DAY_SECONDS = 86_400.0
# Brokers start before a third of the life of their certificate is left, and show it when that is so.
UNTIL_DUE_SECONDS = 150.0


def nearly_due(authority: Authority) -> TlsFiles:
    ends = time.time() + UNTIL_DUE_SECONDS + 30 * DAY_SECONDS
    return authority.issue_lasting("shop", ends - 90 * DAY_SECONDS, ends)


async def test_a_running_operator_restarts_brokers_for_a_renewed_client_certificate(tmp_path: Path) -> None:
    asks = ("--tls-client-certificates", "required")
    async with verifying_group(tmp_path, operator_arguments=asks, issued=nearly_due) as running:
        group = running.group
        await make_topic(running)
        producer = load_of(running)
        try:
            await sends_more(running, producer)
            first, master = await pod_uids(group), group.seen.master_address()
            await running.secret_is(secret_data(running.old.issue("shop", days=90)))

            async def all_are_new() -> bool:
                uids = await pod_uids(group)
                return len(uids) == len(first) and not set(first.values()) & set(uids.values())

            await holds(group, "every broker is restarted", all_are_new)
            await group.until(up_to_date(group), "the update is over")
            second = await pod_uids(group)
            await sends_more(running, producer)
        finally:
            await asyncio.to_thread(producer.stop)
        assert await pod_uids(group) == second, "each once"
        assert group.seen.master_address() != master
        events = (await group.house.api.list(EVENTS, namespace=NAMESPACE)).items
        stopping = [one["message"] for one in events if one["reason"] == "PodStopping"]
        assert sum("CertificateRenewed" in message for message in stopping) == len(first)
        assert producer.failed() == []
        verified = ClientTls(TlsFiles(ca=running.old.certificate))
        kept = await read_keys(str(group.seen.master_address()), TOPIC, QUEUES, tls=verified)
        assert not {one["key"] for one in producer.acknowledged()} - kept
        assert not group.history.violations()
