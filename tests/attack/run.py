"""`make attack`: strangers strike every port of a running system, without any effect.

The system is a sandbox with an operator and a signed group of two Python replicas, on loopback. An honest producer sends during
the strikes of `strikes.py`, one after the other; afterwards the log has every acknowledged message.

The last line of standard output is `{"attacks", "failovers", "honest_p99_ms", "peak_rss_mib", "state_changes", ...}`; exit 0 if
there was no failover, each honest send was acknowledged, the group's record, the brokers' settings and the list
of records stayed the same, and operator and brokers stayed below the operator's memory limit.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, SECRETS  # noqa: E402
from rocketmq_remoting.client import RemotingClient  # noqa: E402
from rocketmq_remoting.codes import RequestCode  # noqa: E402
from rocketmq_remoting.command import request  # noqa: E402
from rocketmq_remoting.errors import RemotingError  # noqa: E402
from rocketmq_remoting.serialization import decode_properties  # noqa: E402
from tests.attack.strikes import STRIKES, Target  # noqa: E402
from tests.e2e.house import NAMESPACE, TOPIC, House, WholeGroup, open_house, whole_group  # noqa: E402

if TYPE_CHECKING:
    from brokergroup_operator.demo.client import Ledger

GROUP = "orders"
REPLICAS = 2
# The chart's limit of the operator; a Python broker's is larger.
MEMORY_LIMIT_MIB = 512
_QUIET_SECONDS = 3.0
SETTINGS = ("minInSyncReplicas", "brokerPermission", "brokerRole", "brokerId", "namesrvAddr", "allAckInSyncStateSet")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Honest:
    """A producer that waits for each answer; has the waiting times."""

    address: str
    ledger: Ledger
    milliseconds: list[float] = field(default_factory=list)
    failed: int = 0

    async def run(self) -> None:
        """Send one message each 20 ms until cancelled."""
        client = RemotingClient()
        try:
            for number in range(1 << 30):
                key = f"honest-{number}"
                fields = {"a": "attack", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0"}
                fields |= {"g": str(int(time.time() * 1000)), "i": f"KEYS\x01{key}\x02"}
                began = time.monotonic()
                try:
                    answer = await client.invoke(
                        self.address,
                        request(RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=key.encode()),
                        timeout_seconds=10.0,
                    )
                    if answer.code == 0:
                        self.ledger.acknowledge(key, began)
                    else:
                        self.failed += 1
                except RemotingError:
                    self.failed += 1
                self.milliseconds.append((time.monotonic() - began) * 1000)
                await asyncio.sleep(0.02)
        finally:
            await client.close()

    def p99_ms(self) -> float:
        ordered = sorted(self.milliseconds)
        return round(ordered[int(0.99 * (len(ordered) - 1))], 1) if ordered else -1.0


async def state_of(group: WholeGroup) -> dict[str, Any]:
    """Return the state that a stranger must not be able to change."""
    record = group.seen.record
    client = RemotingClient()
    settings: dict[str, Any] = {}
    try:
        for replica in record["replicas"]:
            answer = await client.invoke(
                replica["address"], request(RequestCode.GET_BROKER_CONFIG), timeout_seconds=10.0
            )
            shown = decode_properties(answer.body)
            settings[str(replica["brokerId"])] = {name: shown.get(name) for name in SETTINGS}
    finally:
        await client.close()
    records = (await group.house.api.list(BROKER_GROUP_STATES, namespace=NAMESPACE)).items
    return {
        "master": (group.seen.master_id, group.seen.master_epoch),
        "SyncStateSet": sorted(group.seen.sync_state_set),
        "ids and addresses": [(each["brokerId"], each["address"]) for each in record["replicas"]],
        "settings": settings,
        "records": sorted(item["metadata"]["name"] for item in records),
    }


def peak_mib(pid: int) -> int:
    """Return a process's peak memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    return 0


def target_of(group: WholeGroup) -> Target:
    brokers = tuple(replica["address"] for replica in group.seen.record["replicas"])
    ha = tuple(f"{address.rpartition(':')[0]}:{int(address.rpartition(':')[2]) + 1}" for address in brokers)
    controller = group.house.controller_address("operator")
    return Target("python", (*brokers, controller), (controller,), brokers, ha, GROUP, "DefaultCluster")


async def attack(group: WholeGroup, operator_pid: int) -> dict[str, Any]:
    before = await state_of(group)
    address = group.seen.master_address()
    assert address is not None
    honest = Honest(address, group.ledger)
    sending = asyncio.create_task(honest.run())
    await asyncio.sleep(_QUIET_SECONDS)
    quiet_p99_ms = honest.p99_ms()
    struck: dict[str, int] = {}
    failovers_before = len(group.house.incidents())
    for name, strike in STRIKES.items():
        began = time.monotonic()
        struck[name] = await strike(target_of(group))
        say(f"{name}: {struck[name]} in {time.monotonic() - began:.1f} s, honest p99 so far {honest.p99_ms()} ms")
    await asyncio.sleep(_QUIET_SECONDS)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    after = await state_of(group)
    changes = [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    if not changes:
        await group.verify()
    pids = [pid for pid in (operator_pid, *group.pids().values()) if pid is not None]
    return {
        "attacks": sum(struck.values()),
        "failovers": len(group.house.incidents()) - failovers_before,
        "honest_p99_ms": honest.p99_ms(),
        "honest_p99_before_ms": quiet_p99_ms,
        "honest_sends": len(honest.milliseconds),
        "honest_failed": honest.failed,
        "peak_rss_mib": max(peak_mib(pid) for pid in pids),
        "rss_limit_mib": MEMORY_LIMIT_MIB,
        "state_changes": len(changes),
        "changes": changes,
        "by_strike": struck,
    }


async def signed_group(house: House) -> None:
    data = {"accessKey": GROUP, "secretKey": "of-this-run-only"}
    await house.api.create(
        SECRETS,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "credentials", "namespace": NAMESPACE},
            "type": "Opaque",
            "data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()},
        },
    )
    security = {"signature": "Required", "credentialsSecretRef": {"name": "credentials"}}
    await house.create_group(GROUP, replicas=REPLICAS, security=security)


async def run(folder: Path, *, signed: bool) -> dict[str, Any]:
    async with open_house(folder) as house, whole_group(house, GROUP, replicas=REPLICAS) as group:
        operator = await house.start_operator()
        if signed:
            await signed_group(house)
        else:
            await house.create_group(GROUP, replicas=REPLICAS)
        await group.until_settled()
        return await attack(group, operator.process.pid)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--unsigned", action="store_true", help="a group without a key, which hears strangers: shows that this can fail"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    try:
        found = asyncio.run(run(folder, signed=not options.unsigned))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found), flush=True)
    held = not found["failovers"] and not found["state_changes"] and not found["honest_failed"]
    return 0 if held and found["attacks"] and found["peak_rss_mib"] < MEMORY_LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
