"""What JWTs of users and accounts say, read from those that real keys made, and from anything else."""

from __future__ import annotations

import base64
import json

import nkeys
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.config.accounts import AccountClaims, UserClaims, account_claims, is_account_key, user_claims
from tests.engine.identities import Key

ACCOUNT, SIGNING, USER = Key(nkeys.PREFIX_BYTE_ACCOUNT), Key(nkeys.PREFIX_BYTE_ACCOUNT), Key()


def test_a_user_is_of_the_account_that_issued_it_or_for_which_it_was_signed() -> None:
    own = ACCOUNT.jwt(USER.public, "ann", {"type": "user"})
    assert user_claims(own) == UserClaims(ACCOUNT.public, USER.public, "ann")
    signed = SIGNING.jwt(USER.public, "ann", {"type": "user", "issuer_account": ACCOUNT.public}, exp=99)
    assert user_claims(f" {signed}\n") == UserClaims(ACCOUNT.public, USER.public, "ann", 99)
    assert user_claims(ACCOUNT.jwt(USER.public, "ann", {"type": "user"}, exp=0)) == UserClaims(
        ACCOUNT.public, USER.public, "ann"
    )


def test_a_user_of_the_first_version_has_its_type_outside() -> None:
    old = ACCOUNT.jwt(USER.public, "ann", {}, type="user")
    assert user_claims(old) == UserClaims(ACCOUNT.public, USER.public, "ann")


def test_an_account_names_its_signing_keys_and_those_of_roles() -> None:
    operator = Key(nkeys.PREFIX_BYTE_OPERATOR)
    scope = {"kind": "user_scope", "key": SIGNING.public, "role": "backup", "template": {}}
    other = Key(nkeys.PREFIX_BYTE_ACCOUNT).public
    jwt = operator.jwt(ACCOUNT.public, "My Shöp", {"type": "account", "signing_keys": [other, scope, 7, "junk"]})
    assert account_claims(jwt) == AccountClaims(ACCOUNT.public, "My Shöp", (other,), (SIGNING.public,))
    assert account_claims(operator.jwt(ACCOUNT.public, "a", {"type": "account"})) == AccountClaims(ACCOUNT.public, "a")


def test_one_kind_is_not_the_other() -> None:
    assert account_claims(ACCOUNT.jwt(USER.public, "ann", {"type": "user"})) is None
    assert user_claims(ACCOUNT.jwt(ACCOUNT.public, "a", {"type": "account"})) is None
    assert user_claims(USER.jwt(USER.public, "ann", {"type": "user"})) is None  # a user issues no users


def test_an_account_key_has_its_role_and_its_checksum() -> None:
    assert is_account_key(ACCOUNT.public)
    assert not is_account_key(USER.public) and not is_account_key("SHOP") and not is_account_key("")
    wrong = ACCOUNT.public[:20] + ("B" if ACCOUNT.public[20] != "B" else "C") + ACCOUNT.public[21:]
    assert not is_account_key(wrong)
    assert not is_account_key(ACCOUNT.public.lower())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner),
)


@given(st.text(max_size=200) | st.binary(max_size=100).map(lambda raw: f"a.{base64.urlsafe_b64encode(raw).decode()}.b"))
def test_any_text_is_a_jwt_or_none(text: str) -> None:
    assert user_claims(text) is None
    assert account_claims(text) is None


@given(st.dictionaries(st.sampled_from(["iss", "sub", "name", "exp", "nats", "type"]), _JSON))
def test_any_claims_are_read_or_none(claims: dict[str, object]) -> None:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    for read in (user_claims, account_claims):
        found = read(f"e30.{body}.x")
        assert found is None or is_account_key(found.account)
