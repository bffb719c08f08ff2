"""One proof at a time on a machine: two side by side brought one to a load of 60, where brokers miss their heartbeats.

python -m tests.support.alone PROGRAM ARGUMENT ...     becomes this program, which has the machine until it ends
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from kube_sandbox.kubelet.network import hold_name

if TYPE_CHECKING:
    import socket

NAME = "brokergroup-proofs"


def hold_machine() -> socket.socket:
    """Have the machine until this is closed or the process ends, however it ends. SystemExit if another proof has it."""
    if (hold := hold_name(NAME)) is None:
        raise SystemExit("another proof, demo or node set-up runs on this machine: expected none beside this one")
    return hold


def main(command: list[str]) -> NoReturn:
    # The program keeps it open without knowing of it; what Python starts from there does not inherit it.
    os.set_inheritable(hold_machine().detach(), True)  # noqa: FBT003
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
