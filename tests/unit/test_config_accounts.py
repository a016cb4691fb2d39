"""The file of accounts: what is read, what is refused, and that nobody else can read it."""

from __future__ import annotations

import gc
import stat
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from zmq.utils import z85

from malamute.access import Account, Accounts
from malamute.access.account import PasswordHash
from malamute.config.accounts import hash_password, load_accounts, read_secret_key, save_accounts
from malamute.errors import ConfigError
from malamute.protocol.passwords import is_password

KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"


def test_what_is_saved_is_read_again_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    accounts = Accounts(
        [
            Account("ann", key=KEY, groups=("a", "b")),
            Account("bob", hash_password("secret"), disabled=True),
        ]
    )
    save_accounts(accounts, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_accounts(path) == accounts
    assert load_accounts(path).with_key(KEY) == load_accounts(path).named("ann")
    assert load_accounts(path).is_disabled("bob")
    assert not load_accounts(path).is_disabled("ann")
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "accounts.toml"
    save_accounts(Accounts(), path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"open to others \\(mode {mode:04o}\\): expected chmod 600"):
        load_accounts(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[account]", "invalid TOML"),
        ("[[account]]\nname = " + "[" * 5_000, "invalid TOML: too many lists"),
        ("[account]", "unexpected 'account'"),
        ("[[user]]", "unexpected 'user'"),
        ("account = [1]", "account 1: expected a table"),
        ("[[account]]", "account 1: account.name = ''"),
        ("[[account]]\nname = '$a'", "account 1: account.name = '$a'"),
        ("[[account]]\nname = 'a'\npasword = 'x'", "unknown option 'pasword': did you mean 'password'?"),
        (
            "[[account]]\nname = 'a'\npassword = 's3cret'",
            "account.password = …: expected what `malamute user passwd` writes",
        ),
        ("[[account]]\nname = 'a'\npassword = 's3cret", "invalid TOML"),
        ("[[account]]\nname = 'a'\npassword = 'scrypt$3$8$1$YQ==$YQ=='", "expected what"),
        ("[[account]]\nname = 'a'\nkey = 's3cret'", "account.key = …: expected 40 characters of Z85"),
        ("[[account]]\nname = 'a'\n[[account]]\nname = 'a'", "account 'a' stands twice"),
        (
            f"[[account]]\nname = 'a'\nkey = '{KEY}'\n[[account]]\nname = 'b'\nkey = '{KEY}'",
            "accounts 'a' and 'b' have one key",
        ),
        ("[[account]]\nname = 'a'\nuid = -1", "account 1: account.uid = -1"),
        (
            "[[account]]\nname = 'a'\nuid = 0\n[[account]]\nname = 'b'\nuid = 0",
            "accounts 'a' and 'b' have one uid",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "accounts.toml"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_accounts(path)
    assert caught.value.text.startswith(f"{path}: ")
    assert words in caught.value.text
    assert "s3cret" not in caught.value.text


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="accounts cannot be read: No such file"):
        load_accounts(tmp_path / "none")


@settings(deadline=None, max_examples=20)
@given(st.text(min_size=1, max_size=20).filter(is_password), st.text(max_size=20))
@example("a", "a\0")  # HMAC fills its key up with zero bytes
def test_a_password_fits_its_own_hash_and_no_other_does(password: str, other: str) -> None:
    kept = PasswordHash.parse(hash_password(password))
    assert kept.fits(password.encode())
    assert kept.fits(other.encode()) == (other == password)


def test_two_hashes_of_one_password_differ() -> None:
    assert hash_password("x") != hash_password("x")


@pytest.mark.parametrize(
    ("password", "good"),
    [
        ("", False),
        ("x" * 255, True),
        ("x" * 256, False),
        ("é" * 127, True),
        ("é" * 128, False),
        ("a\0", False),
        ("\0a", False),
        ("\udce9", False),
    ],
)
def test_a_password_is_text_that_a_handshake_has_room_for_and_scrypt_tells_apart(
    password: str, good: bool
) -> None:
    if good:
        assert PasswordHash.parse(hash_password(password)).fits(password.encode())
    else:
        with pytest.raises(ConfigError, match="expected 1 to 255 bytes of UTF-8, none of them zero"):
            hash_password(password)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "there is no secret key in it"),
        (b"-----BEGIN PRIVATE KEY-----", "there is no secret key in it"),
        (b'curve\n    secret-key = "short"\n', "there is no secret key in it"),
        (f'curve\n    secret-key = "{KEY}a"\n'.encode(), "there is no secret key in it"),
        (f'curve\n    secret-key = "{KEY[:-1]}~"\n'.encode(), "there is no secret key in it"),
        (f"curve\n    secret-key = {KEY}\n".encode(), "there is no secret key in it"),
        (b"\xff\xfe\x00", "key cannot be read"),
    ],
)
def test_each_malformed_key_is_refused_with_its_file(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "a.key_secret"
    path.touch(0o600)
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_secret_key(path)
    assert caught.value.text.startswith(f"{path}: ")
    assert words in caught.value.text
    assert KEY[:-1] not in caught.value.text
    with pytest.raises(ConfigError, match="key cannot be read"):
        read_secret_key(tmp_path)


def test_a_key_file_without_a_secret_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    path.touch(0o600)
    path.write_text(f'curve\n    public-key = "{KEY}"\n')
    with pytest.raises(ConfigError, match="there is no secret key in it"):
        read_secret_key(path)
    path.write_text(f'curve\n    secret-key = "{KEY}"\n')
    assert read_secret_key(path) == KEY
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="open to others"):
        read_secret_key(path)


def write(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("# nobody\n", []),
        (
            "# all\n[[account]] # one\nname = 'a'\n\n  [[account]]\n  name = 'b'\n[[ account ]]\nname = 'c'",
            "abc",
        ),
        ("account = [{name = 'a'}, {name = 'b'}]", "ab"),
        ("[[account]]\ngroups = [\n'x',\n'y']\nname = 'a'\n[[account]]\nname = 'b'\n", "ab"),
    ],
)
def test_accounts_are_read_one_by_one_as_toml_has_them(tmp_path: Path, text: str, names: str) -> None:
    assert [*load_accounts(write(tmp_path / "a", text)).by_name] == [*names]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[[account]]\nname = 'a'\n[[account]]\nname = \n",
            "invalid TOML: Invalid value (at line 4, column 8)",
        ),
        ("account = [{name = 'a'}]\n[[account]]\nname = 'b'", "invalid TOML"),
        ("[[account]]\nname = 'a'\n[other]\n[[account]]\nname = 'b'", "unexpected 'other'"),
        ("other = 1\n[[account]]\nname = 'b'", "unexpected 'other'"),
        # A table within a text is no account.
        ("[[account]]\nname = '''\n[[account]]\nname = 'eve'\n'''\n", "invalid TOML"),
        ("[[account]]\nname = 'a'\n[[account]]\nname = '$'", "account 2: account.name = '$'"),
    ],
)
def test_a_fault_is_where_it_is_in_the_whole_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_accounts(write(tmp_path / "a", text))
    assert words in caught.value.text


def many(count: int) -> Accounts:
    return Accounts(
        Account(f"user{n}", key=z85.encode(n.to_bytes(32, "big")).decode(), groups=("a", "b"))
        for n in range(count)
    )


def test_an_account_takes_less_than_600_bytes_and_no_time_of_the_garbage_collector(tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    save_accounts(many(1_000), path)
    load_accounts(path)
    gc.collect()
    tracked = len(gc.get_objects())
    tracemalloc.start()
    try:
        found = load_accounts(path)
        size_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    gc.collect()
    assert len(found.by_name) == 1_000
    assert size_bytes / 1_000 < 600
    assert len(gc.get_objects()) - tracked < 100


def test_who_is_disabled_is_found_by_all_that_he_is_known_by() -> None:
    accounts = Accounts([Account("ann", key=KEY, uid=7), Account("bob", disabled=True)])
    assert not accounts.is_disabled("ann")
    assert accounts.is_disabled("bob")
    assert accounts.with_key(KEY) == accounts.with_uid(7) == accounts.named("ann") == accounts.by_name["ann"]
    assert accounts.with_key("x") is None
    assert accounts == Accounts([Account("ann", key=KEY, uid=7), Account("bob", disabled=True)])
    assert accounts != Accounts([Account("ann", key=KEY, uid=7)])


def test_accounts_that_were_cleared_let_nobody_in() -> None:
    accounts = many(3)
    [key] = [account.key for account in accounts.by_name.values() if account.name == "user1"]
    accounts.clear()
    assert not accounts.by_name
    assert accounts.named("user1") is None
    assert accounts.with_key(key) is None
