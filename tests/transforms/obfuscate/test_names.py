"""Hashes of names: the values of the nats CLI, relations that survive, and what stays."""

from __future__ import annotations

import hashlib
import hmac
import pickle
import re
from base64 import b32hexencode, urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.transforms.obfuscate.names import ObfuscatedNames, encoded_name, keyed_hash
from jsbackup.transforms.subjects import matcher

SECRET = bytes(range(32))

# Made by jsm.go 0.5.1 (`obfuscator.hash`) with SECRET.
GOLDEN = {
    "ORDERS": "uk7jtauq1c16mpm2",
    "eu": "4d53c6qsecticvmv",
    "xxxxxxxxxxxxxxxx": "m2nt12fjthapa9pc",
    "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy": "15dj1349jhtacik56q9o7r6kdhp2ptadhqqe2gq4amf5rtrt24t5",
    "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz": "s0oo1ohbea672iivhnadj7t5jni09m28tnd6kvvm9m7jlfu0muep7",
    "Ünïcode & <tag>": "b2qo882efuk4jua89",
}

tokens = st.text(
    st.characters(exclude_characters=".*> \t\r\n\f\v\0", exclude_categories=["Cs"]), min_size=1, max_size=90
)


def names() -> ObfuscatedNames:
    return ObfuscatedNames(SECRET)


@given(token=st.binary(min_size=1, max_size=300))
def test_a_hash_is_as_long_as_its_token_and_its_first_part_is_hmac(token: bytes) -> None:
    found = keyed_hash(SECRET, token)
    assert len(found) == max(16, len(token))
    assert re.fullmatch("[0-9a-v]+", found)
    first = b32hexencode(hmac.digest(SECRET, token, hashlib.sha256)[:30]).decode().lower()
    assert found[:48] == first[: len(found)]
    assert keyed_hash(bytes(32), token) != found


@given(parts=st.lists(tokens, min_size=1, max_size=6), at=st.integers(0, 5), rest=st.booleans())
def test_a_pattern_still_matches_the_subjects_that_it_matched(parts: list[str], at: int, rest: bool) -> None:
    pattern = [*parts]
    if at < len(parts):
        pattern[at] = "*"
    if rest:
        pattern = [*pattern[:-1], ">"]
    subject = ".".join(parts)
    assert matcher(".".join(pattern)).fullmatch(subject)
    assert matcher(names().subject(".".join(pattern))).fullmatch(names().subject(subject))


def test_what_clients_and_servers_find_things_by_stays() -> None:
    found = names()
    token = found.token
    assert found.stream("KV_cfg") == f"KV_{token('cfg')}"
    assert found.stream("OBJ_files") == f"OBJ_{token('files')}"
    assert found.stream("KV_") == token("KV_") and found.stream("ORDERS") == token("ORDERS")
    assert found.subject("$KV.cfg.a.b") == f"$KV.{token('cfg')}.{token('a')}.{token('b')}"
    assert found.subject("$O.files.C.>") == f"$O.{token('files')}.C.>"
    assert found.subject("$O.files.C.NUID") == f"$O.{token('files')}.C.{token('NUID')}"
    meta = found.subject(f"$O.files.M.{encoded_name('a b.pdf')}").split(".")
    assert meta[:3] == ["$O", token("files"), "M"]
    assert urlsafe_b64decode(meta[3]).decode() == token("a b.pdf")
    assert found.subject("$O.files.M.not~base64") == f"$O.{token('files')}.M.{token('not~base64')}"
    assert found.destination("x.$1.{{partition(3,1)}}.>") == f"{token('x')}.$1.{{{{partition(3,1)}}}}.>"
    assert found.subject("x.$1") == f"{token('x')}.{token('$1')}"
    assert found.subject("") == "" and found.token("") == ""


def test_the_secret_is_not_shown_and_tasks_get_no_names() -> None:
    found = names()
    found.token("ORDERS")
    assert repr(found) == "ObfuscatedNames(1 names)"
    there: ObfuscatedNames = pickle.loads(pickle.dumps(found))
    assert there.hashes.keys() == frozenset() and there.token("ORDERS") == found.token("ORDERS")
    there.token("more")
    assert there.since(1) == ("more",) and found.since(0) == ()
    found.learn(there.since(0))
    assert found.hashes.keys() == {"ORDERS", "more"}


@pytest.mark.parametrize("token", GOLDEN)
def test_hashes_are_those_of_the_nats_cli(token: str) -> None:
    assert names().token(token) == GOLDEN[token]
