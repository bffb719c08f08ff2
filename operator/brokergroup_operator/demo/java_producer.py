"""The unmodified Java client as the demo's producer: a process that prints one line of JSON per outcome into our ledger."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

from brokergroup_operator.demo.ledger import Ledger

_SOURCES = Path(__file__).parent / "java"
_STOP_SECONDS = 20.0


@dataclass
class JavaProducer:
    """Runs `NumberedProducer.java` from source, against a real NameServer; the route is the client's own business."""

    rocketmq_home: Path
    name_server: str
    topic: str
    log_path: Path
    ledger: Ledger = field(default_factory=Ledger)

    async def run(self, stop: asyncio.Event) -> None:
        """Produce until told to stop. The end of its input ends the producer; it finishes the sends outstanding first."""
        with self.log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        reader = asyncio.create_task(self._read(process))
        try:
            await stop.wait()
            if process.stdin is not None:
                process.stdin.close()
            async with asyncio.timeout(_STOP_SECONDS):
                await reader
        finally:
            reader.cancel()
            if process.returncode is None:
                process.kill()
            await process.wait()

    def _command(self) -> list[str]:
        return [
            "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Drmq.logback.configurationFile={_SOURCES / 'logback-quiet.xml'}",
            "-cp", str(self.rocketmq_home / "lib" / "*"),
            str(_SOURCES / "NumberedProducer.java"),
            "--name-server", self.name_server, "--topic", self.topic,
        ]  # fmt: skip

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            outcome = json.loads(line)
            if outcome["event"] == "ack":
                self.ledger.acknowledge(outcome["key"], outcome["at_ms"] / 1000)
            else:
                self.ledger.fail()
