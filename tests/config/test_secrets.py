"""Secrets do not print, and references to them are followed or refused without repeating them."""

from __future__ import annotations

import pickle
import secrets as random
from pathlib import Path

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.config.secrets import (
    Secret,
    check_seed,
    expand_path,
    hide_logins,
    parse_creds,
    parse_seed,
    read_file,
    shown,
)
from jsbackup.errors import UsageError

PLANTED = "s3cr3t-hunter2"


def new_seed(prefix: int = nkeys.PREFIX_BYTE_USER) -> str:
    seed: bytes = nkeys.encode_seed(random.token_bytes(32), prefix)
    return seed.decode()


def creds_text(jwt: str, seed: str) -> str:
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\nNKEY Seed printed below is a secret.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n***\n"
    )


def test_a_secret_is_seen_only_when_revealed() -> None:
    secret = Secret(PLANTED)
    assert secret.reveal() == PLANTED
    for text in (
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>40}",
        f"{secret}",
        repr([secret]),
        str({1: secret}),
    ):
        assert PLANTED not in text
    assert not hasattr(secret, "__dict__")


def test_a_secret_cannot_be_pickled_or_changed() -> None:
    secret = Secret(PLANTED)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(secret, protocol)
    with pytest.raises(AttributeError):
        secret._value = "other"


def test_secrets_compare_by_what_they_hold() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("ü")}) == 2


def test_paths_expand_home_and_variables(tmp_path: Path) -> None:
    environ = {"HOME": "/home/ann", "KEYS": "/run/keys", "N": "1"}
    assert expand_path("~/x.creds", environ) == Path("/home/ann/x.creds")
    assert expand_path("~", environ) == Path("/home/ann")
    assert expand_path("$KEYS/${N}.nk", environ) == Path("/run/keys/1.nk")
    assert expand_path("a~b/~c", environ) == Path("a~b/~c")


def test_a_variable_that_is_not_set_is_an_error_not_nothing() -> None:
    with pytest.raises(UsageError, match="names the variable HOEM, which is not set"):
        expand_path("$HOEM/x.creds", {"HOME": "/home/ann"})


def test_files_are_bounded_text_and_errors_name_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nkey file .*absent does not exist"):
        read_file(tmp_path / "absent", "nkey file")
    with pytest.raises(UsageError, match="cannot read the nkey file"):
        read_file(tmp_path, "nkey file")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not a text file"):
        read_file(binary, "nkey file")
    with pytest.raises(UsageError, match="is larger than 4 MiB"):
        read_file(Path("/dev/zero"), "nkey file")


def test_a_credentials_file_yields_jwt_and_seed() -> None:
    seed = new_seed()
    for newline in ("\n", "\r\n"):
        jwt, parsed = parse_creds(creds_text("eyJ0.eyJh.c2ln", seed).replace("\n", newline), "credentials file")
        assert (jwt.reveal(), parsed.reveal()) == ("eyJ0.eyJh.c2ln", seed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-----BEGIN NATS USER JWT-----",
        "-----BEGIN NATS USER JWT-----\na.b.c\n-----BEGIN USER NKEY SEED-----\n",
        creds_text("not-a-jwt", new_seed()),
        creds_text("a.b.c", "SU" + PLANTED),
        creds_text("a.b.c", new_seed(nkeys.PREFIX_BYTE_ACCOUNT)),
        "-" * 100_000,
    ],
    # Keys are made anew: without names of their own the tests would be others in each process.
    ids=["empty", "cut off", "no seed", "no JWT", "a bad seed", "an account's seed", "dashes"],
)
def test_what_is_no_credentials_file_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_creds(text, "credentials file")
    _assert_hidden(caught.value, PLANTED)


def test_an_nkey_file_is_a_seed_bare_or_decorated() -> None:
    seed = new_seed()
    assert parse_seed(f"\n  {seed}\n", "nkey file").reveal() == seed
    assert parse_seed(creds_text("a.b.c", seed), "nkey file").reveal() == seed
    with pytest.raises(UsageError, match="does not hold a seed"):
        parse_seed("UABC", "nkey file")


def test_a_seed_with_a_slip_in_it_is_refused_before_any_server_sees_it() -> None:
    seed = new_seed()
    assert check_seed(seed, "nkey file").reveal() == seed
    for position in range(len(seed) - 1):  # the last character has two bits that mean nothing
        wrong = "Q" if seed[position] != "Q" else "R"
        damaged = seed[:position] + wrong + seed[position + 1 :]
        with pytest.raises(UsageError) as caught:
            check_seed(damaged, "nkey file")
        _assert_hidden(caught.value, damaged)


@given(st.binary(min_size=32, max_size=32))
def test_every_user_seed_of_nkeys_passes_and_no_other_role_does(raw: bytes) -> None:
    assert check_seed(nkeys.encode_seed(raw, nkeys.PREFIX_BYTE_USER).decode(), "seed")
    for role in (
        nkeys.PREFIX_BYTE_ACCOUNT,
        nkeys.PREFIX_BYTE_OPERATOR,
        nkeys.PREFIX_BYTE_SERVER,
        nkeys.PREFIX_BYTE_CLUSTER,
    ):
        with pytest.raises(UsageError):
            check_seed(nkeys.encode_seed(raw, role).decode(), "seed")


@given(st.text(max_size=60))
def test_any_text_is_a_secret_or_a_usage_error(text: str) -> None:
    for parse in (parse_creds, parse_seed, check_seed):
        with pytest.raises(UsageError):
            parse(text, "file")


def _assert_hidden(error: BaseException, secret: str) -> None:
    """No part of the error or of what it was raised from holds the secret."""
    seen: BaseException | None = error
    while seen is not None:
        assert secret not in repr(seen) + str(seen) + str(getattr(seen, "hint", ""))
        seen = seen.__cause__


@pytest.mark.parametrize("folder", ["", "/srv/jobs/", "~/.config/"])
def test_a_key_in_place_of_a_file_name_is_not_shown(folder: str) -> None:
    """Also where it was made absolute, as paths are that executors read, or where it is a whole file."""
    seed, identity = new_seed(), f"AGE-SECRET-KEY-1{'Q' * 58}"
    writer = f"jsbackup-writer-1:{'ab' * 16}:{'cd' * 32}"
    for text in (seed, identity, writer, f"# a key\n{writer}", f"-----BEGIN NATS USER JWT-----\n{PLANTED}"):
        assert shown(f"{folder}{text}") == "(hidden: it looks like a secret, not like a file name)"
    for name in ("jsbackup-writer-1.key", "AGE-SECRET-KEY-1.txt", "SUPPORT.nk", f"{'s' * 30}-{'s' * 30}"):
        assert shown(f"/etc/{folder.strip('/')}/{name}").endswith(name)


def test_logins_in_urls_are_hidden() -> None:
    assert hide_logins("see nats://u:p@h:4222 and nats://t@h") == "see nats://…@h:4222 and nats://…@h"
    assert hide_logins("nats://u:p@ss/w@h,nats://u:p@i") == "nats://…@i"
    assert hide_logins("nats://h:4222, mail me@here") == "nats://h:4222, mail me@here"
