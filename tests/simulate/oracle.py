"""The conditions that must hold at every moment, and those at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokergroup_operator.observe.timeline import Outcome
from tests.simulate.kubelet import GROUP

if TYPE_CHECKING:
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from tests.simulate.world import World

# How long the plane waits for an old master's answer to 1008 before it notifies the others anyway.
OLD_MASTER_ANSWERS_SECONDS = 6.5


@dataclass(frozen=True)
class Answer:
    """A broker's acknowledgement of a message."""

    node: str
    broker_id: int
    epoch: int
    at_seconds: float
    copies: int
    commits: int


class Oracle:
    """Gets commits, roles, answers and incidents; collects `violations`."""

    def __init__(self, world: World, minimum: int) -> None:
        self._world, self._minimum = world, minimum
        self.violations: list[str] = []
        # For each epoch: the plane and time of its commit, and the master before it.
        self._committers: dict[int, str] = {}
        self._terms: dict[int, tuple[float, int | None]] = {}
        # The slave that an epoch repairs.
        self._cures: dict[int, int] = {}
        self.records: list[dict[str, Any]] = []
        self.masters: dict[int, int | None] = {}
        self._holders: dict[int, str] = {}
        self.answers: dict[int, Answer] = {}
        # For each plane's process, epoch and broker: whether the broker has answered the 1008 that arrived.
        self._asked: dict[tuple[str, int, int], bool] = {}
        # With the process that reported it.
        self.incidents: list[tuple[str, FailoverTimeline]] = []

    def complain(self, what: str) -> None:
        """Note a violation."""
        if what not in self.violations:
            self.violations.append(what)
            self._world.story.tell(f"VIOLATION: {what}")

    # ---- at every moment

    def committed(self, record: dict[str, Any], writer: str) -> None:
        before = self.records[-1] if self.records else {}
        epoch, master = record["masterEpoch"], record.get("masterBrokerId")
        if epoch > before.get("masterEpoch", 0):
            if (change := record.get("change") or {}).get("kind") == "Cure":
                self._cures[epoch] = change["slave"]
            plane = next((one for one in self._world.planes if one.node == writer), None)
            self._committers[epoch] = plane.process if plane is not None else writer
            self._terms[epoch] = (self._world.loop.time(), before.get("masterBrokerId"))
            self._judge_death(record, before.get("masterBrokerId"))
        for name in ("masterEpoch", "syncStateSetEpoch", "nextBrokerId"):
            if record.get(name, 0) < before.get(name, 0):
                self.complain(f"{name} fell from {before[name]} to {record[name]}")
        if master is not None and self.masters.setdefault(epoch, master) not in (None, master):
            self.complain(f"epoch {epoch} has two masters: {self.masters[epoch]} and {master}")
        for replica in record.get("replicas", []):
            code, known = replica["registerCheckCode"], self._holders.get(replica["brokerId"], "")
            if code and known and code != known:
                self.complain(f"id {replica['brokerId']} is given to {code}, and was to {known}")
            self._holders[replica["brokerId"]] = code or known
        self.records.append(record)
        set_now = (record.get("syncStateSet"), record.get("eligible"), record.get("masterProcessLost"))
        if (epoch, master, *set_now) != (
            before.get("masterEpoch"), before.get("masterBrokerId"), before.get("syncStateSet"),
            before.get("eligible"), before.get("masterProcessLost"),
        ):  # fmt: skip
            lost = " (its process is lost)" if record.get("masterProcessLost") else ""
            more = {name: record[name] for name in ("eligible", "lostSeats", "unfenced") if record.get(name)}
            if change := record.get("change"):
                more["change"] = {name: change.get(name) for name in ("id", "kind", "phase", "carriedOutBy")}
            self._world.story.tell(
                f"record: epoch {epoch} master {master}{lost} set {record.get('syncStateSet')} {more or ''}".rstrip()
            )

    def _judge_death(self, record: dict[str, Any], old: int | None) -> None:
        """Check a failover: the old master's process is dead, or the record marks its death as unconfirmed (`unfenced`)."""
        change = record.get("change") or {}
        if change.get("kind") != "Failover" or old in (None, record.get("masterBrokerId"), *record.get("unfenced", [])):
            return
        for broker in self._world.kubelet.running():
            if broker.broker_id == old and broker.is_master:
                self.complain(f"{broker.node} was replaced in epoch {record['masterEpoch']} though its process runs")

    def took_role(self, node: str, epoch: int, master: int) -> None:
        """A broker received, or answered, the name of the master."""
        if epoch + 1 in self._cures and node == f"{GROUP}-{self._cures[epoch + 1]}":
            return  # a repair: only the slave gets another master, one epoch below
        if self.masters.get(epoch) != master:
            self.complain(
                f"{node} was told of master {master} in epoch {epoch}: committed is {self.masters.get(epoch)}"
            )

    def told(self, sender: str, node: str, broker_id: int, epoch: int) -> None:
        """1008 arrives. Before the old master's answer, only the plane that carries out the change may notify other brokers."""
        self._asked.setdefault((self._world.process_of(sender), epoch, broker_id), False)
        self._judge_order(sender, node, broker_id, epoch)
        committed_seconds, old = self._terms.get(epoch, (0.0, None))
        committer = self._committers.get(epoch, "")
        carries_on = committer and not self._world.loop.is_dead(committer) and not self._world.loop.is_frozen(committer)
        if old in (None, broker_id) or not carries_on or committer.partition("/")[0] == sender:
            return
        change = self.records[-1].get("change") or {}
        if change.get("phase") != "Telling" or change["carriedOutBy"] == self._world.address_of_plane(sender):
            return  # the record shows that all live brokers were notified; or this plane has taken over the change
        if self._world.loop.time() - committed_seconds > OLD_MASTER_ANSWERS_SECONDS:
            return
        for broker in self._world.kubelet.running():
            if broker.broker_id == old and broker.is_master and broker.epoch < epoch:
                self.complain(
                    f"{sender} told {node} of epoch {epoch}, which {committer} carries out, before {broker.node} had answered"
                )

    def told_answered(self, sender: str, broker_id: int, epoch: int) -> None:
        """A broker has answered 1008."""
        self._asked[self._world.process_of(sender), epoch, broker_id] = True

    def _judge_order(self, sender: str, node: str, broker_id: int, epoch: int) -> None:
        """Check that a switchover notifies the other members after the old master has answered, or could not be reached."""
        change = self.records[-1].get("change") or {}
        committed_seconds, old = self._terms.get(epoch, (0.0, None))
        is_moved = change.get("kind") in ("Switchover", "Drain") and change.get("phase") == "Telling"
        if not is_moved or old in (None, broker_id) or change.get("from") != old:
            return
        holder = next((one for one in self._world.kubelet.running() if one.broker_id == old), None)
        if holder is None or self._world.is_troubled((sender, holder.node), committed_seconds):
            return
        if self._asked.get((self._world.process_of(sender), epoch, old or 0)) is not True:
            self.complain(f"{sender} told {node} of epoch {epoch} before {holder.node}, the old master, had answered")

    def set_granted(self, node: str, broker_id: int, epoch: int, set_epoch: int) -> None:
        """A broker's 1001 was granted: the record of this set epoch must name that master with its epoch."""
        granted = [record for record in self.records if record["syncStateSetEpoch"] == set_epoch]
        if not any((record.get("masterBrokerId"), record["masterEpoch"]) == (broker_id, epoch) for record in granted):
            self.complain(f"{node} was granted set epoch {set_epoch} in epoch {epoch}, which was over by then")

    def answered(self, node: str, broker_id: int, epoch: int, message: int, copies: int) -> None:
        """A master acknowledges. A switchover stops the old master's acknowledgements before the election, for good."""
        now_seconds = self._world.loop.time()
        record = self.records[-1]
        change = record.get("change") or {}
        is_moved = change.get("kind") in ("Switchover", "Drain") and change.get("phase") == "Telling"
        if is_moved and change.get("from") == broker_id and epoch < record["masterEpoch"]:
            self.complain(
                f"{node} acknowledged in epoch {epoch}, though a switchover had made another one master by then"
            )
        self.answers[message] = Answer(node, broker_id, epoch, now_seconds, copies, len(self.records))

    def incident(self, node: str, timeline: FailoverTimeline) -> None:
        self.incidents.append((self._world.plane(node).process, timeline))
        self._world.story.tell(
            f"{node}: incident closed: {timeline.from_broker_id} to {timeline.to_broker_id}, epoch {timeline.epoch_after}, "
            f"{timeline.outcome.value}{', unfenced' if timeline.unfenced else ''}"
        )

    # ---- at the end

    def judge(self, acknowledged: list[int]) -> None:
        brokers = self._world.kubelet.running()
        masters = [broker for broker in brokers if broker.is_master]
        record = self.records[-1]
        if [broker.broker_id for broker in masters] != [record.get("masterBrokerId")]:
            self.complain(
                f"masters at the end: {[broker.broker_id for broker in masters]}, the record says {record.get('masterBrokerId')}"
            )
        for node, disk in self._world.kubelet.disks.items():
            if disk.minimum != self._minimum:
                self.complain(f"{node} was told minInSyncReplicas={disk.minimum} for a change, and never told back")
        if masters:
            self._judge_log(masters[0].disk.messages, acknowledged)
        self._judge_incidents()

    def _judge_log(self, log: list[int], acknowledged: list[int]) -> None:
        present = set(log)
        lost = [message for message in acknowledged if message not in present]
        unexcused = [message for message in lost if not self._is_announced(self.answers[message])]
        self._world.excused += len(lost) - len(unexcused)
        if unexcused:
            first = self.answers[unexcused[0]]
            self.complain(
                f"{len(unexcused)} acknowledged messages are lost, the first was acknowledged by {first.node} in epoch "
                f"{first.epoch} at {first.at_seconds:.4f} s on {first.copies} disks, "
                f"the record then had epoch {self.records[first.commits - 1]['masterEpoch']}"
            )

    def _is_announced(self, answer: Answer) -> bool:
        """Whether the product gives no promise about this loss (docs/concepts/architecture.md, "What stays open").

        The message's master was replaced with `unfenced` in the record; or a Java master without links acknowledged messages in
        flight with one copy, while the record still named it and no commit showed that it continued alone.
        """
        after = self.records[answer.commits - 1 :]
        if any(answer.broker_id in record.get("unfenced", []) for record in after):
            return True
        then = after[0]
        is_its_term = (then.get("masterBrokerId"), then["masterEpoch"]) == (answer.broker_id, answer.epoch)
        told_alone = any(
            record["syncStateSet"] == [answer.broker_id] and record["masterEpoch"] == answer.epoch for record in after
        )
        return answer.copies < self._minimum and is_its_term and not told_alone

    def _judge_incidents(self) -> None:
        """Check for one completed incident for each change of master after the first election."""
        changes: list[int] = []
        last: int | None = None
        for record in self.records:
            master = record.get("masterBrokerId")
            if master is not None and master != last:
                if last is not None:
                    changes.append(record["masterEpoch"])
                last = master
        ended = (Outcome.COMPLETED, Outcome.INCOMPLETE)
        for epoch in changes:
            told = [
                one for one, timeline in self.incidents if timeline.epoch_after == epoch and timeline.outcome in ended
            ]
            # A plane that takes over does not know whether its predecessor reported the change: readers merge by the common id.
            died = sum(self._world.loop.is_dead(one) for one in told[:-1])
            if not 1 <= len(told) <= self._tellers(epoch) + died:
                self.complain(f"the change of master in epoch {epoch} was told as {len(told)} incidents")

    def _tellers(self, epoch: int) -> int:
        """Count the planes that carried out this epoch's change in turn, and the plane that superseded it before its end."""
        tellers, carrier = 0, None
        for record in self.records:
            change = record.get("change") or {}
            if change.get("epoch") == epoch:
                tellers += change["carriedOutBy"] != carrier
                carrier = change["carriedOutBy"]
            elif carrier is not None:
                return tellers + (bool(change) or record["masterEpoch"] > epoch)
        return max(1, tellers)
