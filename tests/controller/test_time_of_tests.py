"""Real parts live in real time, our planes beside them in virtual time: a mark on a parameter decides too."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtual_loop import VirtualLoop


@pytest.mark.parametrize(
    ("kind", "is_virtual"), [pytest.param("java", False, marks=pytest.mark.real_time), ("ours", True)]
)
async def test_a_mark_on_a_parameter_decides_the_time(kind: str, *, is_virtual: bool) -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualLoop) is is_virtual, kind
