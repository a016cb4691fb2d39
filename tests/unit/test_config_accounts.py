"""The file of accounts: what is read, what is refused, and that nobody else can read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.config import accounts as module
from malamute.config.accounts import Account, Accounts, PasswordHash, hash_password, read_secret_key
from malamute.errors import ConfigError

KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCRYPT_COST", 2)


def test_what_is_saved_is_read_again_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    accounts = Accounts(
        [
            Account("ann", key=KEY, groups=("a", "b")),
            Account("bob", hash_password("secret"), disabled=True),
        ]
    )
    accounts.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Accounts.load(path) == accounts
    assert Accounts.load(path).by_key[KEY].name == "ann"
    assert Accounts.load(path).enabled == {"ann": ("a", "b")}
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "accounts.toml"
    Accounts().save(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"open to others \\(mode {mode:04o}\\): expected chmod 600"):
        Accounts.load(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[account]", "invalid TOML"),
        ("[account]", "unexpected 'account'"),
        ("[[user]]", "unexpected 'user'"),
        ("account = [1]", "account 1: expected a table"),
        ("[[account]]", "account 1: account.name = ''"),
        ("[[account]]\nname = '$a'", "account 1: account.name = '$a'"),
        ("[[account]]\nname = 'a'\npasword = 'x'", "unknown option 'pasword': did you mean 'password'?"),
        ("[[account]]\nname = 'a'\npassword = 'x'", "expected what `malamute user passwd` writes"),
        ("[[account]]\nname = 'a'\npassword = 'scrypt$3$8$1$YQ==$YQ=='", "expected what"),
        ("[[account]]\nname = 'a'\nkey = 'short'", "expected 40 characters of Z85"),
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
        Accounts.load(path)
    assert caught.value.text.startswith(f"{path}: ")
    assert words in caught.value.text


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="accounts cannot be read: No such file"):
        Accounts.load(tmp_path / "none")


@settings(deadline=None, max_examples=20)
@given(st.text(min_size=1, max_size=20), st.text(max_size=20))
def test_a_password_fits_its_own_hash_and_no_other_does(password: str, other: str) -> None:
    kept = PasswordHash.parse(hash_password(password))
    assert kept.fits(password.encode())
    assert kept.fits(other.encode()) == (other == password)


def test_two_hashes_of_one_password_differ() -> None:
    assert hash_password("x") != hash_password("x")


@pytest.mark.parametrize(("password", "good"), [("", False), ("x" * 1024, True), ("x" * 1025, False)])
def test_a_password_has_a_length(password: str, good: bool) -> None:
    if good:
        assert PasswordHash.parse(hash_password(password)).fits(password.encode())
    else:
        with pytest.raises(ConfigError, match="expected 1 to 1024 bytes"):
            hash_password(password)


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
