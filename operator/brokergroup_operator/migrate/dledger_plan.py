"""Judges the members of a DLedger group, and chooses the one whose log is copied. Pure.

The chosen log has every entry that any named member has: a member with an entry that it lacks blocks. An acknowledged message is on
a majority of the disks, and a majority is named, so one of them has it, and the chosen one too
(docs/adr/0031-a-dledger-log-is-copied.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brokergroup_operator.migrate.adopt import Doubt, Finding
from brokergroup_operator.migrate.dledger_store import MemberReport, Settings
from brokergroup_operator.migrate.stores import DISPATCHED_FILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_START_AGAIN: Final = (
    "Start all members again, keep producers away until their logs end alike, and stop them; or leave that one out, if a majority"
    " is left"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMember:
    """A store as the administrator named it, and what it says: a report, or why there is none."""

    name: str
    said: MemberReport | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Which log would be copied, and what is in the way. `others`: the reports on the other members."""

    chosen: NamedMember | None
    others: tuple[MemberReport, ...]
    doubts: tuple[Doubt, ...]

    @property
    def blocked(self) -> bool:
        return self.chosen is None or any(doubt.blocks for doubt in self.doubts)

    @property
    def report(self) -> MemberReport:
        assert self.chosen is not None
        assert isinstance(self.chosen.said, MemberReport)
        return self.chosen.said

    def lines(self) -> Iterator[str]:
        """Yield the plan, for a person."""
        if self.chosen is not None:
            one = self.report
            yield f"member {one.member} ({self.chosen.name}) is copied: {_why(one, self.others)}"
            yield (
                f"  {one.entries} entries, {one.messages} messages, index {one.first_index}..{one.last_index}, offset"
                f" {one.begin}..{one.end}, terms {', '.join(str(term) for term, _ in one.terms)}"
            )
            if one.old_files:
                yield f"  before them {one.old_files} files of the log from before DLedger, which are copied as they are"
            yield f"  mappedFileSizeCommitLog={one.file_bytes}; the copy takes {_room(one)}"
            for other in self.others:
                behind = one.last_index - other.last_index
                yield f"  member {other.member} is not copied: {f'{behind} entries behind' if behind else 'its log ends alike'}"
        yield from (f"  {doubt}" for doubt in self.doubts)


def judge(stores: Sequence[NamedMember], *, members: int, older_offsets: bool = False) -> Copying:
    """Return the plan. `members`: how many the DLedger group has (dLegerPeers), also those that are not named.

    `older_offsets`: the administrator accepts settings that are older than another member's.
    """
    known = [one for one in stores if isinstance(one.said, MemberReport)]
    doubts = [*_about_reading(stores), *_about_majority(known, members)]
    if not known:
        return Copying(chosen=None, others=(), doubts=tuple(doubts))
    chosen = max(known, key=_rank)
    reports = [one.said for one in known if isinstance(one.said, MemberReport) and one is not chosen]
    if isinstance(chosen.said, MemberReport):
        doubts += [*_about_chosen(chosen.said), *_about_settings(chosen.said, reports, accepted=older_offsets)]
        doubts += [doubt for other in reports for doubt in _beside(other, chosen.said)]
        doubts += _about_minority(chosen.said, reports, members)
    return Copying(chosen=chosen, others=tuple(reports), doubts=tuple(doubts))


def _rank(one: NamedMember) -> tuple[int, int, Settings, int]:
    """Raft's order first. Of logs that end alike, that with the newest settings, as the last leader has them."""
    report = one.said
    assert isinstance(report, MemberReport)
    return report.last_term, report.last_index, report.settings, -report.first_index


def _why(one: MemberReport, others: Sequence[MemberReport]) -> str:
    last = f"its last entry is {one.last_index} of term {one.last_term}"
    if any((other.last_term, other.last_index) == (one.last_term, one.last_index) for other in others):
        return f"{last}, no member has a later one, and its settings are the newest of those"
    return f"{last}, the others have an earlier one"


def _room(one: MemberReport) -> str:
    parts = {
        "the log": one.log_bytes,
        "the consume queues": one.queue_bytes,
        "the index": one.index_bytes,
        "the settings": one.settings_bytes,
    }
    return f"at most {one.room_bytes} bytes: {', '.join(f'{what} {size}' for what, size in parts.items())}"


def _about_reading(stores: Sequence[NamedMember]) -> Iterator[Doubt]:
    for one in stores:
        if isinstance(one.said, str):
            yield Doubt(
                finding=Finding.UNREADABLE,
                what=f"{one.name}: {one.said}",
                remedy="Leave it out, if a majority is left",
            )
    names = [one.said.member for one in stores if isinstance(one.said, MemberReport)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Doubt(finding=Finding.NAMED_TWICE, what=f"member {name} is named twice", remedy="Name each store once")


def _about_majority(known: Sequence[NamedMember], members: int) -> Iterator[Doubt]:
    needed = members // 2 + 1
    # Beside members with entries, an empty log is that of a disk that was lost: what it had acknowledged is not on it.
    empty = sum(isinstance(one.said, MemberReport) and not one.said.terms for one in known)
    empty = 0 if empty == len(known) else empty
    if len(known) - empty < needed:
        shown = f", without the {empty} whose log is empty" if empty else ""
        yield Doubt(
            finding=Finding.NO_MAJORITY,
            what=f"{len(known) - empty} of {members} members can be read{shown}, expected at least {needed}",
            remedy="A message is acknowledged once a majority has it: with fewer, one may be missing from all of them",
        )
    elif len(known) < members:
        yield Doubt(
            finding=Finding.OLDER_OFFSETS,
            what=f"{len(known)} of {members} members are named",
            remedy="No message is missing; topics and offsets may be newer on a member that is not named",
            blocks=False,
        )
    elif len(known) > members:
        yield Doubt(
            finding=Finding.NO_MAJORITY,
            what=f"{len(known)} members are named, and the group has {members}",
            remedy="Expected as many as dLegerPeers has",
        )


def _about_chosen(one: MemberReport) -> Iterator[Doubt]:
    if not one.messages:
        yield Doubt(
            finding=Finding.EMPTY_LOG, what="no member has a message", remedy="Begin with a group that has empty disks"
        )
    if one.timers:
        yield Doubt(
            finding=Finding.WAITING_TIMERS,
            what=f"{one.timers} messages with an arbitrary delay wait in the timer wheel, which refers to places in the old log",
            remedy="Start the members again until they are delivered. Delay levels are no obstacle",
        )
    if one.compacted:
        yield Doubt(
            finding=Finding.COMPACTED_TOPICS,
            what=f"topics with cleanup.policy COMPACTION: {', '.join(one.compacted)}",
            remedy="What is compacted lies outside the log and is not copied: copy those topics with a client, and delete them",
        )
    if one.left_out:
        yield Doubt(
            finding=Finding.LEFT_OUT,
            what=f"the store of {one.member} has {', '.join(one.left_out)}, which is not copied",
            remedy="Move what is yours out of the store. In rocksdbstore lie half transactions, timers or indexes of brokers that"
            " are set to keep them there: these cannot be copied",
        )
    if one.undispatched_files > DISPATCHED_FILES:
        yield Doubt(
            finding=Finding.QUEUES_BEHIND,
            what=f"the consume queues of {one.member} lack messages of the last {one.undispatched_files} files of the log",
            remedy=f"A broker adds what the last {DISPATCHED_FILES} files have: start this one again until its queues have"
            " caught up. Consume queues in RocksDB cannot be copied",
        )
    yield from _worth_knowing(one)


def _worth_knowing(one: MemberReport) -> Iterator[Doubt]:
    if not one.stopped_cleanly:
        yield Doubt(
            finding=Finding.NOT_STOPPED,
            what=f"{one.member} has a file abort: its broker was killed",
            remedy="Its offsets of consumers may be some seconds old",
            blocks=False,
        )
    if one.stale:
        yield Doubt(
            finding=Finding.CUT_OFF,
            what=f"behind the log of {one.member} lie entries of earlier terms, which DLedger has cut off",
            remedy="They are left out",
            blocks=False,
        )
    if one.hidden:
        yield Doubt(
            finding=Finding.HIDDEN,
            what=f"{one.hidden} messages have the number of an earlier message in their queue",
            remedy="No consumer has got them, and none will",
            blocks=False,
        )
    if one.no_index:
        yield Doubt(
            finding=Finding.NO_INDEX,
            what=f"the index files of {one.member} are not copied: {one.no_index}",
            remedy="At the first member, a query by key or message id finds none of the copied messages, unless they are in the"
            f" last {DISPATCHED_FILES} files of the log",
            blocks=False,
        )
    if one.deleted:
        yield Doubt(
            finding=Finding.DELETED_TOPICS,
            what=f"{one.deleted} messages are of topics that were deleted",
            remedy="They are copied with the log, and are in no queue. Create no topic of such a name before retention has"
            " deleted them: brokers that copy the log give its first messages the numbers of old ones",
            blocks=False,
        )


def _about_settings(one: MemberReport, others: Sequence[MemberReport], *, accepted: bool) -> Iterator[Doubt]:
    for other in others:
        if one.settings.lacks_of(other.settings):
            yield Doubt(
                finding=Finding.OLDER_OFFSETS,
                what=f"{one.member} has {one.settings}; {other.member} has {other.settings}",
                remedy="Consumers would read again what they have read, and delayed messages would come again: start all members"
                " until their logs end alike, and stop the leader last; or accept it with --older-offsets",
                blocks=not accepted,
            )


def _beside(other: MemberReport, chosen: MemberReport) -> Iterator[Doubt]:
    """What the other member has, and the chosen one lacks."""
    if other.file_bytes != chosen.file_bytes:
        yield Doubt(
            finding=Finding.OTHER_FILE_SIZE,
            what=f"the files of {other.member} have {other.file_bytes} bytes, those of {chosen.member} {chosen.file_bytes}",
            remedy="A group has one mappedFileSizeCommitLog: is it of another group?",
        )
    if why := _disagreement(other, chosen):
        yield Doubt(
            finding=Finding.MEMBERS_DISAGREE, what=f"{other.member} and {chosen.member}: {why}", remedy=_START_AGAIN
        )
    if 0 <= other.first_index < chosen.first_index:
        yield Doubt(
            finding=Finding.BEGINS_LATER,
            what=f"{chosen.member} begins at entry {chosen.first_index}, {other.member} at {other.first_index}",
            remedy="The log that is copied has deleted the earlier ones, as retention does",
            blocks=False,
        )


def _disagreement(other: MemberReport, chosen: MemberReport) -> str:
    """Return where two logs differ; empty if one is a part of the other, as far as both go."""
    if other.last_index < 0:
        return ""
    first, last = max(other.first_index, chosen.first_index), other.last_index
    if last > chosen.last_index:
        return f"entries {chosen.last_index + 1}..{last} of term {other.last_term} are only on {other.member}"
    if first > last:
        return f"they have no entry in common: {other.member} ends at {last}, {chosen.member} begins at {first}"
    mine, its = _terms_of(other, first, last), _terms_of(chosen, first, last)
    if mine != its:
        parted = next((one for one in (*mine, *its) if one not in mine or one not in its), mine[0])
        return f"they part at entry {parted[1]}, which has another term on each"
    return _files_differ(other, chosen)


def _files_differ(other: MemberReport, chosen: MemberReport) -> str:
    """Return which file differs. Where the other one ends within a file of the chosen one, the copy compares the bytes."""
    whole = {one.offset: one for one in chosen.files}
    for one in other.files:
        its = whole.get(one.offset)
        if its is None:
            if chosen.files and one.offset > chosen.files[0].offset:
                return f"{chosen.member} has no file with entries at {one.offset}"
        elif one.first != its.first or one.last not in {its.last, other.last_index}:
            return f"the file at {one.offset} has entries {one.first}..{one.last}, and {its.first}..{its.last}"
        elif one.last == its.last and one.sha256 != its.sha256:
            return f"entries {one.first}..{one.last} are of the same terms, and their bytes differ"
    return ""


def _terms_of(one: MemberReport, first: int, last: int) -> list[tuple[int, int]]:
    """Return the terms of the entries from `first` to `last`, each with its first entry there."""
    ends = [begin for _, begin in one.terms[1:]] + [one.last_index + 1]
    return [
        (term, max(begin, first))
        for (term, begin), end in zip(one.terms, ends, strict=True)
        if begin <= last and end > first
    ]


def _about_minority(one: MemberReport, others: Sequence[MemberReport], members: int) -> Iterator[Doubt]:
    """Entries that no majority is known to have were not acknowledged by this alone; DLedger would keep them too."""
    needed = members // 2 + 1
    lasts = sorted((other.last_index for other in (one, *others)), reverse=True)
    if len(lasts) >= needed and (count := one.last_index - lasts[needed - 1]):
        yield Doubt(
            finding=Finding.ON_A_MINORITY,
            what=f"the last {count} entries are on less than a majority of {members}",
            remedy="They are copied, as they would stay when this member leads: a producer may have got an error for them",
            blocks=False,
        )
