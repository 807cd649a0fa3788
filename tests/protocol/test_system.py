"""Answers of the system account: those that servers give, and anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.protocol.system import (
    PAGE,
    AccountDetail,
    MetaGroup,
    account_details,
    active_servers,
    decode_answer,
    jsz_accounts,
    jsz_streams,
    listed_accounts,
    meta_group,
)

KEY = "AAEKVRLB6APSD7NV2OHKER4G36XX6DILTOCIHAX4JYGUJ7P4RPNZ2ES6"
SERVER = {"id": "N1", "name": "n1", "cluster": "C", "domain": "hub", "ver": "2.12.8", "jetstream": True}


def answer(data: Any = None, **more: Any) -> bytes:
    return json.dumps({"server": SERVER, **({} if data is None else {"data": data}), **more}).encode()


def test_requests_have_the_fields_that_servers_know() -> None:
    assert json.loads(jsz_accounts(2048)) == {"accounts": True, "offset": 2048, "limit": PAGE}
    assert json.loads(jsz_streams(KEY)) == {"account": KEY, "streams": True, "config": True}


def test_a_server_names_itself() -> None:
    found = decode_answer(answer({}), "answer")
    assert (found.server, found.name, found.domain, found.error) == ("N1", "n1", "hub", "")
    nameless = json.dumps({"server": {"id": "N2"}, "data": {}}).encode()
    assert (decode_answer(nameless, "answer").name, decode_answer(nameless, "answer").domain) == ("N2", "")


def test_an_error_stands_for_the_data() -> None:
    found = decode_answer(answer(None, error={"code": 500, "description": "no\nsuch account"}), "answer")
    assert found.error == "no such account"
    assert list(account_details(found)) == []


def test_how_many_servers_there_are() -> None:
    assert active_servers(decode_answer(answer(statsz={"active_servers": 5}), "answer")) == 5
    assert active_servers(decode_answer(answer(statsz={}), "answer")) == 1


def test_accounts_have_a_key_and_a_name_or_a_name_alone() -> None:
    details = [
        {"name": "My Shöp", "id": KEY, "memory": 5, "storage": 7, "api": {}},
        {"name": "SHOP", "id": "SHOP", "memory": 0, "storage": 0},
        {"name": "OLD"},
    ]
    assert list(account_details(decode_answer(answer({"account_details": details}), "answer"))) == [
        AccountDetail(KEY, "My Shöp", 12),
        AccountDetail("SHOP", "SHOP", 0),
        AccountDetail("OLD", "OLD", 0),
    ]
    assert list(account_details(decode_answer(answer({"disabled": True}), "answer"))) == []


def test_streams_are_as_in_the_jetstream_api() -> None:
    stream = {"name": "S", "created": "2026-01-01T00:00:00Z", "state": {"messages": 1}, "config": {"name": "S"}}
    bare = {"name": "T"}
    details = [{"name": "A", "id": "A", "stream_detail": [stream, bare]}]
    [found] = account_details(decode_answer(answer({"account_details": details}), "answer"))
    assert found.streams == (
        {"config": {"name": "S"}, "created": "2026-01-01T00:00:00Z", "state": {"messages": 1}},
        {"config": {"name": "T"}, "created": "", "state": {}},
    )


def test_a_meta_group_has_a_size_and_the_names_that_are_known() -> None:
    unknown = "Server name unknown at this time (peerID: fjFyEjc1)"
    meta = {"leader": "n1", "cluster_size": 3, "replicas": [{"name": "n2"}, {"name": unknown, "offline": True}]}
    assert meta_group(decode_answer(answer({"meta_cluster": meta}), "answer")) == MetaGroup(3, ("n1", "n2"))
    assert meta_group(decode_answer(answer({}), "answer")) is None


def test_a_list_of_accounts_is_bare() -> None:
    assert listed_accounts(decode_answer(answer([KEY, 7]), "list")) == [KEY]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b'{"server": 7, "data": {}}',
        answer(),
        answer(7),
        b'{"server": {"id": 7}, "data": {}}',
        answer(None, error=7),
    ],
)
def test_what_is_no_answer_is_an_error(payload: bytes) -> None:
    with pytest.raises(FormatError):
        decode_answer(payload, "answer")


@pytest.mark.parametrize(
    "data",
    [
        {"account_details": {}},
        {"account_details": [7]},
        {"account_details": [{}]},
        {"account_details": [{"name": 7}]},
        {"account_details": [{"name": "A", "storage": -1}]},
        {"account_details": [{"name": "A", "stream_detail": [{}]}]},
    ],
)
def test_accounts_that_make_no_sense_are_an_error(data: Any) -> None:
    with pytest.raises(FormatError):
        list(account_details(decode_answer(answer(data), "answer")))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["account_details", "stream_detail", "name", "id", "storage", "meta_cluster", "replicas", "data"]
            ),
            inner,
        )
    ),
)


@given(_JSON, st.sampled_from(["data", "statsz", "error"]))
def test_anything_is_an_answer_or_an_error(value: Any, key: str) -> None:
    try:
        found = decode_answer(answer(**{key: value}) if key != "data" else answer(value), "answer")
        list(account_details(found)), active_servers(found), meta_group(found), listed_accounts(found)
    except FormatError:
        pass
