"""Ports and networks of tests: no two test processes of a machine are handed the same one."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.repository.made import ROOT
from tests.support.places import free_port, loopback_hosts, pod_network_place

OTHER = "from tests.support.places import free_port, loopback_hosts, pod_network_place\n"


def of_another_process(code: str) -> str:
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}
    done = subprocess.run([sys.executable, "-c", OTHER + code], env=path, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_port_and_its_neighbours_are_handed_out_once() -> None:
    mine = {free_port(neighbours=2), free_port(), free_port()}
    assert len(mine) == 3
    # The other one begins to look at the same place.
    code = f"import os; os.getpid = lambda: {os.getpid()}; print(*(free_port(neighbours=2) for _ in range(20)))"
    theirs = {int(port) for port in of_another_process(code).split()}
    assert len(theirs) == 20
    taken = {port - neighbour for port in theirs for neighbour in range(3)}
    assert mine.isdisjoint(taken)


def test_a_loopback_host_is_handed_out_once() -> None:
    mine = {*loopback_hosts(3), *loopback_hosts(250)}
    assert len(mine) == 253
    code = f"import os; os.getpid = lambda: {os.getpid()}; print(*loopback_hosts(250), *loopback_hosts(3))"
    assert mine.isdisjoint(of_another_process(code).split())


def test_a_pod_network_has_one_user() -> None:
    code = "with pod_network_place() as place: print(place.bridge, place.subnet)"
    with pod_network_place() as mine:
        bridge, subnet = of_another_process(code).split()
        assert bridge != mine.bridge
        assert subnet != str(mine.subnet)
