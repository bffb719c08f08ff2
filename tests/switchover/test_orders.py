"""The checker of `orders.py`: accepted logs, and its findings in logs of another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.switchover.orders import BrokerLogs, Entry, Move, complaints, entries

if TYPE_CHECKING:
    from pathlib import Path

MOVE = Move(epoch=8, old=1, new=2, hosts={1: "10.0.0.1", 2: "10.0.0.2", 3: "10.0.0.3"})
# (millisecond, broker, line): a switchover from 1 to 2 as Java brokers of 5.5.0 log it.
TOLD_99 = (
    100,
    1,
    "AdminBrokerThread_8 - updateBrokerConfig, new config: [{minInSyncReplicas=99}] client: 10.0.0.9:4644 ",
)
ASIDE_2 = (110, 2, "AdminBrokerThread_1 - update master ha address, OLD: 10.0.0.1:10912 NEW: 127.0.0.1:9")
ASIDE_3 = (110, 3, "AdminBrokerThread_1 - update master ha address, OLD: 10.0.0.1:10912 NEW: 127.0.0.1:9")
SLAVE = "Begin to change to slave, brokerName=orders, brokerId={}, newMasterBrokerId=2, newMasterAddress=a:1, newMasterEpoch=8"
ENDED = "Change ha to slave success, newMasterAddress:10.0.0.2:10911, newMasterEpoch:8"
BEGINS_1 = (120, 1, f"AdminBrokerThread_10 - {SLAVE.format(1)}")
ENDS_1 = (130, 1, f"AdminBrokerThread_10 - {ENDED}")
BEGINS_2 = (
    140,
    2,
    "AdminBrokerThread_5 - Begin to change to master, brokerName:orders, replicas:10.0.0.2:10911, new Epoch:8",
)
ENDS_2 = (150, 2, "AdminBrokerThread_5 - Change ha to master success, newMasterEpoch:8, startOffset:7168")
BEGINS_3 = (140, 3, f"AdminBrokerThread_5 - {SLAVE.format(3)}")
ENDS_3 = (145, 3, f"AdminBrokerThread_5 - {ENDED}")
NONE_3 = (145, 3, "AdminBrokerThread_5 - update master ha address, OLD: 127.0.0.1:9 NEW: null")
POINTED_1 = (160, 1, "AdminBrokerThread_6 - update master ha address, OLD: null NEW: 10.0.0.2:10912")
POINTED_3 = (160, 3, "ReplicasManager_ExecutorService_1 - update master ha address, OLD: null NEW: 10.0.0.2:10912")
TOLD_2 = (
    170,
    1,
    "AdminBrokerThread_8 - updateBrokerConfig, new config: [{minInSyncReplicas=2}] client: 10.0.0.9:4644 ",
)
WHOLE = (
    *(TOLD_99, ASIDE_2, ASIDE_3, BEGINS_1, ENDS_1, BEGINS_2, ENDS_2, BEGINS_3, ENDS_3, NONE_3),
    *(POINTED_1, POINTED_3, TOLD_2),
)
Said = tuple[int, int, str]


def logs_of(said: tuple[Said, ...]) -> dict[int, list[Entry]]:
    """Return the entries of each broker's file."""
    found: dict[int, list[Entry]] = {}
    for broker_id in MOVE.hosts:
        own = sorted((one for one in said if one[1] == broker_id), key=lambda one: one[0])
        lines = [f"2026-11-28 04:20:08.{at:03d} INFO {text}" for at, _, text in own]
        found[broker_id] = list(entries(broker_id, lines))
    return found


def judged(*moved: tuple[Said, int], without: tuple[Said, ...] = (), more: tuple[Said, ...] = ()) -> list[str]:
    """Return the complaints if these lines come at another millisecond."""
    times = dict(moved)
    said = ((times.get(one, one[0]), *one[1:]) for one in WHOLE if one not in without)
    return complaints(logs_of((*said, *more)), MOVE)


def test_the_order_of_the_trace_is_accepted() -> None:
    assert judged() == []


def test_of_lines_of_one_millisecond_neither_came_first() -> None:
    assert judged((BEGINS_3, 130), (POINTED_3, 150)) == []


@pytest.mark.parametrize(
    ("moved", "complaint"),
    [
        ((ASIDE_3, 99), "broker 1 minimum 99 at 04:20:08.100 came after broker 3 points 127.0.0.1:9 at 04:20:08.099"),
        ((ASIDE_2, 121), "broker 2 points 127.0.0.1:9 at 04:20:08.121 came after broker 1 begins slave (epoch 8)"),
        ((BEGINS_2, 129), "broker 1 changed slave (epoch 8) at 04:20:08.130 came after broker 2 begins master (epoch 8)"),
        ((BEGINS_3, 115), "broker 1 changed slave (epoch 8) at 04:20:08.130 came after broker 3 begins slave (epoch 8)"),
        ((POINTED_3, 149), "broker 2 changed master (epoch 8) at 04:20:08.150 came after broker 3 points 10.0.0.2:10912"),
        ((POINTED_1, 135), "broker 2 changed master (epoch 8) at 04:20:08.150 came after broker 1 points 10.0.0.2:10912"),
        ((TOLD_2, 125), "broker 1 changed slave (epoch 8) at 04:20:08.130 came after broker 1 minimum 2"),
    ],
)  # fmt: skip
def test_another_order_is_found(moved: tuple[Said, int], complaint: str) -> None:
    found = judged(moved)
    assert len(found) == 1
    assert found[0].startswith(complaint)


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        (TOLD_99, "no line of broker 1 that it was told to acknowledge nothing"),
        (ASIDE_2, "no line of broker 2 that it was pointed nowhere"),
        (BEGINS_3, "no line of broker 3 that it began the change"),
        (ENDS_2, "no line of broker 2 that it ended the change"),
        (POINTED_1, "no line of broker 1 that it was pointed to the new master"),
        (TOLD_2, "no line of broker 1 that it got its minInSyncReplicas back"),
    ],
)
def test_what_is_missing_is_found(missing: Said, complaint: str) -> None:
    assert complaint in judged(without=(missing,))


def test_a_slave_chained_behind_the_old_master_is_found() -> None:
    chained = (155, 3, "ReplicasManager_ExecutorService_1 - update master ha address, OLD: null NEW: 10.0.0.1:10912")
    assert judged(more=(chained,)) == [
        "broker 3 points 10.0.0.1:10912 at 04:20:08.155: expected the new master 10.0.0.2"
    ]


def test_an_old_master_that_could_acknowledge_again_is_found() -> None:
    back = (115, 1, TOLD_2[2])
    assert "broker 1 minimum 2 at 04:20:08.115 before its change: it could acknowledge again" in judged(more=(back,))


def test_logs_are_read_from_where_they_were_left(tmp_path: Path) -> None:
    file = tmp_path / "default_orders-1_uid" / "run" / "order.log"
    file.parent.mkdir(parents=True)
    file.write_text(f"2026-11-28 04:20:08.100 INFO {TOLD_99[2]}\njava.lang.Exception: of no line\n")
    logs = BrokerLogs(tmp_path, "orders")
    assert [one.value for one in logs.read()[1]] == ["99"]
    with file.open("a") as log:
        log.write(f"2026-11-28 04:20:08.170 INFO {TOLD_2[2]}\n")
    assert [str(one) for one in logs.read()[1]] == ["broker 1 minimum 2 at 04:20:08.170"]
