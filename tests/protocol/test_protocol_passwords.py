"""A user and a password as one text, and what can be either."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.protocol.limits import PASSWORD_BYTES_MAX, TOKEN_BYTES_MAX
from malamute.protocol.passwords import is_password, pack_login, unpack_login

PASSWORDS = st.text(min_size=1).filter(is_password)


@given(PASSWORDS, PASSWORDS)
def test_what_is_packed_is_unpacked_and_has_room_in_hello(user: str, password: str) -> None:
    packed = pack_login(user, password)
    assert unpack_login(packed) == (user, password)
    assert len(packed.encode()) <= 2 * PASSWORD_BYTES_MAX + 2 <= TOKEN_BYTES_MAX


@pytest.mark.parametrize("token", ["", "e30.e30.e30", "\0", "\0ann", "\0ann\0x\0", "ann\0x", "x\0ann\0x"])
def test_what_is_none_is_none(token: str) -> None:
    assert unpack_login(token) is None
