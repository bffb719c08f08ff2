"""The verbs whole, with our own controller plane at the end of the cut and at the beginning of the way back."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.migrate import run
from brokergroup_operator.migrate.back import BackError, BackSettings
from brokergroup_operator.migrate.cut_over import CutOverError
from brokergroup_operator.migrate.java import read_state
from brokergroup_operator.migrate.plan import RecordInTheWayError, Standing
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.codes import RequestCode
from tests.migrate.conftest import EPOCH, cut_settings
from tests.support.fake_broker import NAME, eventually
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.migrate.java import JavaState
    from controller_core.model import BrokerGroupRecord
    from tests.migrate.conftest import House
    from tests.migrate.fake_java import FakeJavaController


pytestmark = pytest.mark.real_time
KEY = GroupKey("standalone", NAME)


def source(house: House) -> run.Source:
    return run.Source(controller=house.java.address, name_servers=(house.name_server.address,))


def home(tmp_path: Path) -> run.Home:
    return run.Home(store=f"file:{tmp_path / 'records'}", listen=("127.0.0.1", free_port("127.0.0.1")))


async def followed(house: House, own: run.Home, stop: asyncio.Event | None = None) -> asyncio.Task[object]:
    """A cut that follows Java."""
    cut = run.cut_over(source(house), own, cut_settings(own.address), stop=stop or asyncio.Event(), report=house.report)
    cutting = asyncio.create_task(cut)
    await eventually(lambda: "follow" in house.steps, what="the cut follows Java")
    return cutting


async def went_back(house: House, own: run.Home, controller: str, *, dry_run: bool = False) -> list[JavaState]:
    """What `migrate back` to this Java controller returns."""
    settings = BackSettings(controller=controller, own_address=own.address, list_deadline_seconds=8.0)
    to = replace(source(house), controller=controller)
    return await run.back(to, own, settings, dry_run=dry_run, report=house.report)


async def stored(tmp_path: Path) -> BrokerGroupRecord | None:
    store = FileRecordStore(tmp_path / "records")
    found = await store.read(KEY)
    await store.close()
    return found.record if found is not None else None


async def write(tmp_path: Path, record: BrokerGroupRecord) -> None:
    store = FileRecordStore(tmp_path / "records")
    await store.commit(KEY, record, await store.read(KEY))
    await store.close()


async def test_to_ours_a_failover_there_and_back(house: House, fresh: FakeJavaController, tmp_path: Path) -> None:
    own, stop = home(tmp_path), asyncio.Event()
    cutting = await followed(house, own, stop)
    await house.stop_java()
    await eventually(lambda: "leading" in house.steps, what="ours leads")

    async def whole() -> bool:
        state = await read_state(house.calls, own.address, NAME)
        return state is not None and state.alive == {1, 2, 3} and state.master_epoch == EPOCH

    await eventually(whole, what="ours hears all, in the same epoch")
    assert house.nobody_changed_role()
    stop.set()
    await cutting
    record = await stored(tmp_path)
    assert record is not None
    assert (record.master_broker_id, record.master_epoch) == (1, EPOCH)
    assert record.sync_state_set == {1, 2, 3}

    [state] = await went_back(house, own, fresh.address)
    assert (state.master_broker_id, state.master_epoch) == (1, EPOCH)
    assert state.sync_state_set == {1, 2, 3}
    assert house.nobody_changed_role()


async def test_a_signal_before_the_end_gives_the_lists_back(house: House, tmp_path: Path) -> None:
    for one in house.brokers:
        one.reread_seconds = 1000.0
    own, stop = home(tmp_path), asyncio.Event()
    cutting = await followed(house, own, stop)
    address = house.java.address
    await house.stop_java()
    await eventually(lambda: "listed" in house.steps, what="lists changed")
    stop.set()
    with pytest.raises(CutOverError, match="stopped: ours has granted nothing"):
        await cutting
    assert {one.listed for one in house.brokers} == {address}
    assert await stored(tmp_path) is None


async def test_a_record_in_the_way_is_found_before_anything_is_done(house: House, tmp_path: Path) -> None:
    _, [planned] = await run.plan(source(house))
    await write(tmp_path, replace(planned.record, master_epoch=EPOCH + 5))
    own = home(tmp_path)
    with pytest.raises(RecordInTheWayError, match="it is ahead, or another group"):
        await run.cut_over(source(house), own, cut_settings(own.address), stop=asyncio.Event(), report=house.report)
    assert house.steps == []


async def test_a_record_that_cannot_be_written_at_the_end_gives_the_lists_back(house: House, tmp_path: Path) -> None:
    _, [planned] = await run.plan(source(house))
    own = home(tmp_path)
    cutting = await followed(house, own)
    address = house.java.address
    await write(tmp_path, replace(planned.record, master_epoch=EPOCH + 5))
    await house.stop_java()
    with pytest.raises(CutOverError, match="the record could not be written"):
        await cutting
    assert {one.listed for one in house.brokers} == {address}
    assert "leading" not in house.steps


async def test_a_group_asked_for_by_name_must_be_known(house: House, tmp_path: Path) -> None:
    own = home(tmp_path)
    asked = replace(source(house), broker_names=(NAME, "typo"))
    with pytest.raises(CutOverError, match=r"nothing was begun: .* does not know typo"):
        await run.cut_over(asked, own, cut_settings(own.address), stop=asyncio.Event(), report=house.report)
    assert house.steps == []


async def test_apply_writes_once_and_over_an_older_one_only_if_told(house: House, tmp_path: Path) -> None:
    own = home(tmp_path)
    _, plans = await run.plan(source(house))

    async def apply(*, replace_older: bool = False) -> Standing:
        written = await run.apply(plans, store=own.store, kubeconfig=None, replace_older=replace_older)
        return written[str(KEY)]

    assert await apply() is Standing.ABSENT
    assert await apply() is Standing.SAME
    assert await stored(tmp_path) == plans[0].record
    await write(tmp_path, replace(plans[0].record, master_epoch=EPOCH - 1, sync_state_set_epoch=3))
    with pytest.raises(RecordInTheWayError, match="`migrate apply --replace` writes over it"):
        await apply()
    assert await apply(replace_older=True) is Standing.BEHIND
    assert await stored(tmp_path) == plans[0].record


async def test_back_wants_ours_stopped(house: House, tmp_path: Path) -> None:
    taken = tuple(house.quiet.address.rsplit(":", 1))
    own = replace(home(tmp_path), listen=(taken[0], int(taken[1])))
    with pytest.raises(BackError, match="stop our controller first"):
        await went_back(house, own, house.java.address)


async def test_an_address_nobody_can_dial_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"advertise is empty and listen is '0\.0\.0\.0'"):
        run.Home(store=f"file:{tmp_path}", listen=("0.0.0.0", 9878))


async def test_back_wants_a_record(house: House, tmp_path: Path) -> None:
    with pytest.raises(BackError, match="has no record of bn"):
        await went_back(house, home(tmp_path), house.java.address, dry_run=True)


async def test_a_dry_run_back_changes_nothing(house: House, fresh: FakeJavaController, tmp_path: Path) -> None:
    _, plans = await run.plan(source(house))
    await write(tmp_path, plans[0].record)
    await house.stop_java()
    assert await went_back(house, home(tmp_path), fresh.address, dry_run=True) == []
    assert fresh.sets == {}
    assert {one.listed for one in house.brokers} == {house.java.address}


async def test_the_shadow_judges_a_failover_of_javas(house: House) -> None:
    lines: list[dict[str, Any]] = []

    def report(step: str, **facts: object) -> None:
        lines.append(json.loads(json.dumps({"step": step, **facts}, default=str)))

    stop = asyncio.Event()
    port = free_port("127.0.0.1")
    shadowing = asyncio.create_task(run.shadow(source(house), listen=("127.0.0.1", port), stop=stop, report=report))
    await eventually(lambda: lines, what="the shadow stands")
    for one in house.brokers:
        one.listed = f"{house.java.address};127.0.0.1:{port}"
    await eventually(lambda: all(len(one.used) == 2 for one in house.brokers), what="all list the shadow")
    beats = {one.broker_id: one.beats for one in house.brokers}
    await eventually(lambda: all(one.beats > beats[one.broker_id] + 1 for one in house.brokers), what="all heard by it")
    reads = house.java.asked.count(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA)
    await eventually(
        lambda: house.java.asked.count(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA) > reads + 1,
        what="the shadow read Java's state with them heard, and went on",
    )
    await house.brokers[0].kill()
    await eventually(
        lambda: [one for one in lines if one["step"] in ("decision", "difference")], what="an election judged"
    )
    stop.set()
    await shadowing
    [judged] = [one for one in lines if one.get("what", "").startswith("election")]
    assert judged["agrees"], f"{judged['ours']}: {judged['why']}"
    assert judged["java"] == "master 2, epoch +1"
    assert judged["ours"] == "master 2"
