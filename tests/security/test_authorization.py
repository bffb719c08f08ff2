"""The rules of `authorization.py` as a table, callers by signature or certificate, and the log of refusals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.api.brokergroup import Signature
from brokergroup_operator.controller.access.authorization import (
    MOST_REMEMBERED,
    Caller,
    NotPermittedError,
    ReplayGuard,
    Subject,
    authorize,
    identify,
)
from brokergroup_operator.controller.directory.group_directory import GroupBinding
from brokergroup_operator.controller.directory.pods import Peer
from brokergroup_operator.controller.settings import (
    AdminCredentials,
    AdminCredentialsError,
    SecuritySettings,
    read_credentials,
)
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.signature import ACCESS_KEY, SIGNATURE, Credentials, sign, sign_command

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.client import RemotingClient
    from rocketmq_remoting.connection import RemotingConnection
    from tests.controller.conftest import StartPlane

GROUP_KEY = Credentials(access_key="group-a", secret_key="group-a-secret-0123456789")
OTHER_KEY = Credentials(access_key="group-b", secret_key="group-b-secret-0123456789")
ADMIN_KEY = Credentials(access_key="root", secret_key="admin-secret-0123456789")
BINDING = GroupBinding(key=GroupKey("ns", "group-a"), cluster_name="cl", broker_name="bn", credentials=GROUP_KEY)
OWN_NAME = "group-a.ns"  # that a certificate of its brokers has
CLOSED = SecuritySettings(admin_credentials=AdminCredentials([ADMIN_KEY]))
OPEN = SecuritySettings(open_admin=True, configuration_readable=True, brokers_without_pods=True)

STRANGER = Caller(host="192.0.2.9")
POD_1 = Caller(host="192.0.2.1", peer=Peer(namespace="ns", pod_name="group-a-1", group=BINDING.key))
POD_2 = Caller(host="192.0.2.2", peer=Peer(namespace="ns", pod_name="group-a-2", group=BINDING.key))
NAMESAKE = Caller(
    host="192.0.2.3", peer=Peer(namespace="other", pod_name="group-a-1", group=GroupKey("other", "group-a"))
)
SIGNED = Caller(host="192.0.2.9", access_key=GROUP_KEY.access_key)
SIGNED_OTHER = Caller(host="192.0.2.9", access_key=OTHER_KEY.access_key)
CERTIFIED = Caller(host="192.0.2.9", certificate_names=("x", OWN_NAME))
CERTIFIED_OTHER = Caller(host="192.0.2.9", certificate_names=("group-a.other", "group-a", "ns"))
ADMIN = Caller(host="192.0.2.9", access_key=ADMIN_KEY.access_key, admin=True)

SPEAKING = (904, 1001, 1002, 1003, 1012, 1013)
READING = (1004, 1005, 1006)


def allowed(caller: Caller, code: int, subject: Subject, settings: SecuritySettings) -> bool:
    try:
        authorize(caller, code, subject, settings)
    except NotPermittedError:
        return False
    return True


@pytest.mark.parametrize("code", SPEAKING)
@pytest.mark.parametrize(
    ("caller", "for_pod_1", "for_no_pod"),
    [
        (STRANGER, False, False),
        (POD_1, True, True),
        (POD_2, False, True),
        (NAMESAKE, False, False),
        (SIGNED, True, True),
        (SIGNED_OTHER, False, False),
        (CERTIFIED, True, True),
        (CERTIFIED_OTHER, False, False),
        (ADMIN, False, False),
        # A pod acts only for itself, whatever keys it may have.
        (POD_2._replace(access_key=GROUP_KEY.access_key), False, True),
        (NAMESAKE._replace(access_key=GROUP_KEY.access_key), False, False),
    ],
    ids=str,
)
def test_who_speaks_for_a_broker(code: int, caller: Caller, *, for_pod_1: bool, for_no_pod: bool) -> None:
    own = Subject(binding=BINDING, broker_id=1, pod="group-a-1")
    assert allowed(caller, code, own, CLOSED) == for_pod_1
    assert allowed(caller, code, Subject(binding=BINDING, broker_id=7), CLOSED) == for_no_pod


@pytest.mark.parametrize("code", SPEAKING)
def test_opened_groups_hear_anybody_for_what_is_no_pod_and_nobody_else_for_a_pod(code: int) -> None:
    for binding, settings in ((replace(BINDING, open=True), CLOSED), (BINDING, OPEN)):
        assert allowed(STRANGER, code, Subject(binding=binding, broker_id=7), settings)
        assert not allowed(STRANGER, code, Subject(binding=binding, broker_id=1, pod="group-a-1"), settings)
        assert not allowed(NAMESAKE, code, Subject(binding=binding, broker_id=7), settings)


@pytest.mark.parametrize(("code", "designate"), [(1002, True), (1011, False)])
def test_only_an_administrator_designates_and_cleans(code: int, *, designate: bool) -> None:
    for binding in (BINDING, None):
        subject = Subject(binding=binding, broker_id=1, pod="group-a-1", designate=designate)
        for caller in (STRANGER, POD_1, POD_2, SIGNED, CERTIFIED):
            assert not allowed(caller, code, subject, CLOSED)
        assert allowed(ADMIN, code, subject, CLOSED)
        assert allowed(STRANGER, code, subject, OPEN)


@pytest.mark.parametrize("code", READING)
def test_reading_is_open(code: int) -> None:
    for caller in (STRANGER, NAMESAKE, POD_1):
        assert allowed(caller, code, Subject(binding=BINDING), CLOSED)


def test_configuration_is_never_written_and_read_when_opened() -> None:
    nothing = Subject(binding=None)
    for caller in (STRANGER, ADMIN, POD_1):
        assert not allowed(caller, 1009, nothing, OPEN)
        assert not allowed(caller, 1010, nothing, CLOSED)
        assert allowed(caller, 1010, nothing, OPEN)


def test_what_is_no_controller_request_is_not_allowed() -> None:
    for code in (*range(904), *range(905, 1001), 1007, 1008, *range(1014, 2001), -1):
        assert not allowed(ADMIN, code, Subject(binding=BINDING), OPEN)


@pytest.mark.parametrize("code", [*SPEAKING, 1004, 1011])
def test_a_group_that_requires_signatures_hears_nothing_unsigned(code: int) -> None:
    """Even if another way in exists: a permissive port, an open group, a certificate, the pod itself."""
    required = replace(BINDING, signature=Signature.REQUIRED, open=True)
    subject = Subject(binding=required, broker_id=1, pod="group-a-1")
    for caller in (STRANGER, POD_1, CERTIFIED, SIGNED_OTHER):
        assert not allowed(caller, code, subject, OPEN)
    without = replace(required, credentials=None)
    assert not allowed(SIGNED, code, subject._replace(binding=without), OPEN)
    if code not in (1011,):
        assert allowed(POD_1._replace(access_key=GROUP_KEY.access_key), code, subject, CLOSED)


# --------------------------------------------------------------------------------------------- what a request shows


class Connection:
    """The parts of a connection that authorization reads."""

    def __init__(self, *names: str) -> None:
        self.peer_host = "192.0.2.9"
        self.certificate_names = names
        self.known = False

    def peer_is_known(self) -> None:
        self.known = True


FIELDS = {"brokerName": "bn", "clusterName": "cl", "brokerId": "1"}


def shows(
    ext_fields: dict[str, str],
    *,
    binding: GroupBinding | None = BINDING,
    body: bytes | None = None,
    names: tuple[str, ...] = (),
    settings: SecuritySettings = CLOSED,
    replays: ReplayGuard | None = None,
) -> tuple[Caller, bool]:
    connection = Connection(*names)
    caller = identify(
        request(1003, ext_fields=ext_fields, body=body),
        cast("RemotingConnection", connection),
        host=connection.peer_host,
        peer=None,
        binding=binding,
        settings=settings,
        replays=ReplayGuard() if replays is None else replays,
    )
    return caller, connection.known


def test_a_right_signature_makes_the_caller_known() -> None:
    caller, known = shows(sign(FIELDS, b"body", GROUP_KEY), body=b"body")
    assert (caller.access_key, caller.admin, known) == (GROUP_KEY.access_key, False, True)
    caller, known = shows(sign(FIELDS, None, ADMIN_KEY))
    assert (caller.access_key, caller.admin, known) == (ADMIN_KEY.access_key, True, True)
    caller, known = shows(FIELDS)
    assert (caller.access_key, caller.admin, known) == (None, False, False)


@pytest.mark.parametrize("policy", [Signature.ACCEPTED, Signature.REQUIRED])
@pytest.mark.parametrize(
    "fields",
    [
        sign(FIELDS, None, GROUP_KEY) | {"brokerId": "2"},
        sign(FIELDS, b"other body", GROUP_KEY),
        sign(FIELDS, None, replace(GROUP_KEY, secret_key="wrong")),
        sign(FIELDS, None, replace(ADMIN_KEY, secret_key="wrong")),
        sign(FIELDS, None, OTHER_KEY),
        sign(FIELDS, None, GROUP_KEY) | {SIGNATURE: ""},
        sign(FIELDS, None, GROUP_KEY) | {SIGNATURE: "\ud800"},
        FIELDS | {ACCESS_KEY: GROUP_KEY.access_key},
        FIELDS | {SIGNATURE: "x"},
    ],
    ids=range(9),
)
def test_a_wrong_signature_is_refused_whatever_else_is_known(policy: Signature, fields: dict[str, str]) -> None:
    with pytest.raises(NotPermittedError) as refused:
        shows(fields, binding=replace(BINDING, signature=policy, open=True), names=(OWN_NAME,))
    for secret in (GROUP_KEY.secret_key, ADMIN_KEY.secret_key, sign(FIELDS, None, GROUP_KEY)[SIGNATURE]):
        assert secret not in str(refused.value)


def test_off_looks_at_no_signature_of_the_group_and_still_at_an_administrators() -> None:
    off = replace(BINDING, signature=Signature.DISABLED)
    for fields in (
        sign(FIELDS, None, replace(GROUP_KEY, secret_key="wrong")),
        sign(FIELDS, None, replace(ADMIN_KEY, secret_key="wrong")),
        sign(FIELDS, None, GROUP_KEY),
        FIELDS | {SIGNATURE: "x"},
    ):
        caller, known = shows(fields, binding=off)
        assert (caller.access_key, caller.admin, known) == (None, False, False)
    caller, _ = shows(sign(FIELDS, None, ADMIN_KEY), binding=off)
    assert caller.admin


def test_brokers_that_sign_with_a_key_we_were_not_told_of_count_as_unsigned() -> None:
    for binding in (None, replace(BINDING, credentials=None)):
        caller, known = shows(sign(FIELDS, None, OTHER_KEY), binding=binding)
        assert (caller.access_key, known) == (None, False)


def test_a_signature_counts_once() -> None:
    guard = ReplayGuard()
    first = sign({**FIELDS, "invokeTime": "1795210522768"}, None, GROUP_KEY)
    shows(first, replays=guard)
    with pytest.raises(NotPermittedError, match="counts once"):
        shows(first, replays=guard)
    shows(sign({**FIELDS, "invokeTime": "1795210522769"}, None, GROUP_KEY), replays=guard)
    # A wrong signature is not stored: without the key a client cannot use up another's signature, or the memory.
    forged = sign({**FIELDS, "invokeTime": "3"}, None, GROUP_KEY)
    with pytest.raises(NotPermittedError, match="wrong"):
        shows({**forged, "brokerId": "9"}, replays=guard)
    shows(forged, replays=guard)


def test_a_renamed_time_makes_no_new_request() -> None:
    """Field names are not signed: an eavesdropper may rename a request's time to another field with the same sort position."""
    guard = ReplayGuard()
    first = sign({**FIELDS, "invokeTime": "1795210522768"}, None, GROUP_KEY)
    shows(first, replays=guard)
    renamed = {("invokeTimf" if name == "invokeTime" else name): value for name, value in first.items()}
    with pytest.raises(NotPermittedError, match="counts once"):
        shows(renamed, replays=guard)


def test_what_carries_no_time_may_come_again_and_the_memory_is_bounded() -> None:
    guard = ReplayGuard()
    for _ in range(2):
        shows(sign(FIELDS, None, GROUP_KEY), replays=guard)
        assert not guard.is_replay(904, {"invokeTime": "1"}, "x")
    for number in range(MOST_REMEMBERED + 10):
        assert not guard.is_replay(1003, {"invokeTime": "1"}, str(number))
    assert len(guard._seen) == MOST_REMEMBERED
    assert guard.is_replay(1003, {"invokeTime": "1"}, str(MOST_REMEMBERED))


def test_an_administrators_certificate() -> None:
    settings = SecuritySettings(admin_certificate_names=frozenset({"admin.example"}))
    assert shows(FIELDS, names=("admin.example",), settings=settings)[0].admin
    assert not shows(FIELDS, names=("group-a.ns",), settings=settings)[0].admin


def test_our_own_requests_are_signed_as_a_broker_checks_them() -> None:
    command = sign_command(request(1008, ext_fields=FIELDS, body=b"{}"), GROUP_KEY)
    caller, _ = shows(dict(command.ext_fields or {}), body=command.body)
    assert caller.access_key == GROUP_KEY.access_key


# ------------------------------------------------------------------------------------------------ administrators' file


def test_administrators_are_read_from_a_mounted_secret_or_json(tmp_path: Path) -> None:
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "accessKey").write_text("root\n", encoding="utf-8")
    (folder / "secretKey").write_text(ADMIN_KEY.secret_key, encoding="utf-8")
    assert read_credentials(folder) == (ADMIN_KEY,)
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text('{"accessKey":"a","secretKey":"b"}', encoding="utf-8")
    two.write_text('[{"accessKey":"a","secretKey":"b"},{"accessKey":"c","secretKey":"d"}]', encoding="utf-8")
    assert [len(read_credentials(path)) for path in (one, two)] == [1, 2]


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{}", '{"accessKey":"planted-key"}', '{"accessKey":"planted-key","secretKey":""}', "planted-key: x"],
)
def test_a_file_that_cannot_be_used_is_named_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AdminCredentialsError, match="expected a folder with the files accessKey and secretKey") as told:
        read_credentials(path)
    assert "planted-key" not in str(told.value)
    assert str(path) in str(told.value)


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("brokergroup_operator.controller.settings.CHECK_SECONDS", 0.0)
    path = tmp_path / "credentials.json"
    path.write_text('{"accessKey":"a","secretKey":"first"}', encoding="utf-8")
    admins = AdminCredentials(path=path)
    assert admins.get("a") == Credentials(access_key="a", secret_key="first")
    path.write_text('{"accessKey":"a","secretKey":"second one"}', encoding="utf-8")
    assert admins.get("a") == Credentials(access_key="a", secret_key="second one")
    path.write_text('{"accessKey":"a","secretKey":', encoding="utf-8")
    assert admins.get("a") == Credentials(access_key="a", secret_key="second one")
    assert admins.get("b") is None
    assert caplog.text.count("stay in force") == 1
    path.write_text('{"accessKey":"b","secretKey":"third"}', encoding="utf-8")
    assert (admins.get("a"), admins.get("b")) == (None, Credentials(access_key="b", secret_key="third"))


def test_a_secret_is_in_no_text_of_its_credentials() -> None:
    assert GROUP_KEY.secret_key not in repr(GROUP_KEY)
    assert GROUP_KEY.secret_key not in f"{BINDING}{CLOSED}"
    with pytest.raises(ValueError, match="secret_key is empty"):
        Credentials(access_key="a", secret_key="")


# ---- Refusals are logged at most ten times a minute.


async def test_refusals_are_told_ten_times_a_minute_and_then_counted(
    start_plane: StartPlane, client: RemotingClient
) -> None:
    plane = await start_plane()

    async def told_of(refused: int) -> list[tuple[str, int | None]]:
        with capture_logs() as lines:
            for _ in range(refused):
                answer = await client.invoke(plane.address, request(1009), timeout_seconds=5)
                assert answer.code == ResponseCode.NO_PERMISSION
        return [(line["event"], line.get("left_out")) for line in lines if "refused" in line["event"]]

    assert await told_of(17) == [("request refused", None)] * 10
    await asyncio.sleep(59.0)
    assert await told_of(1) == []
    await asyncio.sleep(1.0)
    assert await told_of(1) == [("more requests were refused", 8), ("request refused", None)]
