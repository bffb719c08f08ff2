"""The real mqadmin kept running: a JVM that is started once, and told one command after the other (`AdminShell.java`).

Only the start of the program is ours: the commands, what they send and what they print are `MQAdminStartup`'s. An access key goes
where mqadmin looks for one: into `conf/tools.yml` of its home folder.
"""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.real.parts.java import QUIET, java_command
from tests.real.parts.process import RealProcessError

SOURCE = Path(__file__).resolve().parent / "mqadmin" / "AdminShell.java"
COMMAND_DEADLINE_SECONDS = 60.0
ATTEMPTS = 4
TOO_LATE = "RemotingTimeoutException"


@dataclass(frozen=True)
class AdminShell:
    """A running shell. Not for two callers at a time."""

    process: subprocess.Popen[bytes]
    home: Path
    log: Path

    def sign_as(self, access_key: str, secret_key: str) -> None:
        """Sign what the next commands send: mqadmin reads the keys anew for each of them."""
        tools = self.home / "conf" / "tools.yml"
        tools.parent.mkdir(exist_ok=True)
        tools.write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n", encoding="utf-8")

    def sign_no_more(self) -> None:
        """Send the next commands unsigned."""
        (self.home / "conf" / "tools.yml").unlink(missing_ok=True)

    def run(self, *arguments: str) -> str:
        """Return a command's output. Only for commands that end and may be repeated.

        Its deadline of 3 s is of wall-clock time, and begins before it has loaded its classes: asked again when it was missed.
        """
        printed = self.run_once(*arguments)
        for _ in range(ATTEMPTS - 1):
            if TOO_LATE not in printed:
                break
            printed = self.run_once(*arguments)
        return printed

    def run_once(self, *arguments: str) -> str:
        """Return the output of any command, without a repetition."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        watchdog = threading.Timer(COMMAND_DEADLINE_SECONDS, self.process.kill)
        watchdog.start()
        try:
            self.process.stdin.write("\t".join(arguments).encode() + b"\n")
            self.process.stdin.flush()
            size = self.process.stdout.readline()
            if not size:
                tail = self.log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise RealProcessError(f"mqadmin {' '.join(arguments)}: the shell ended; its log ends:\n{tail}")
            return self.process.stdout.read(int(size)).decode()
        finally:
            watchdog.cancel()

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


def start_shell(folder: Path, *, name_server_address: str) -> AdminShell:
    """Start mqadmin's JVM in this folder, which is its home."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = (QUIET, f"-Drocketmq.namesrv.addr={name_server_address}")
    *command, _ = java_command("mqadmin", folder, flags=flags)
    log = folder / "shell.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [*command, str(SOURCE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    return AdminShell(process, folder, log)
