"""One proof at a time on a machine: two at once caused a load of 60, where brokers miss their heartbeats.

python -m tests.support.alone PROGRAM ARGUMENT ...     becomes this program, which holds the machine until it ends
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
    """Hold the machine until this is closed or the process ends in any way. SystemExit if another proof holds it."""
    if (hold := hold_name(NAME)) is None:
        raise SystemExit("another proof, demo or node set-up runs on this machine: expected none beside this one")
    return hold


def main(command: list[str]) -> NoReturn:
    # The program inherits the open descriptor; processes that Python starts from there do not.
    os.set_inheritable(hold_machine().detach(), True)  # noqa: FBT003
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
