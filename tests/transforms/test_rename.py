from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.transforms.rename import RenameOptions, StreamKind, bucket_of


def test_streams_and_what_copies_from_them_are_renamed() -> None:
    streams = {"A": {}, "B": {}}
    renames = RenameOptions.parse(["A=X", "GONE=Y"]).over(streams)
    assert renames.names == (("A", "X"),) and not renames.subjects
    config = {
        "name": "A",
        "mirror": {"name": "A", "opt_start_seq": 5},
        "sources": [{"name": "A"}, {"name": "B"}, {"name": "A", "external": {"api": "x"}}],
        "other": 1,
    }
    assert renames.config(config) == {
        "name": "X",
        "mirror": {"name": "X", "opt_start_seq": 5},
        "sources": [{"name": "X"}, {"name": "B"}, {"name": "A", "external": {"api": "x"}}],
        "other": 1,
    }
    assert RenameOptions.parse(["A=X", "GONE=Y"]).unknown(streams) == ["GONE"]


def test_buckets_take_their_subjects_along() -> None:
    renames = RenameOptions.parse(["KV_a=KV_b", "KV_b=KV_a", "OBJ_o=OBJ_p"]).over({"KV_a": {}, "KV_b": {}, "OBJ_o": {}})
    assert renames.subjects.map("$KV.a.k.l") == "$KV.b.k.l"
    assert renames.subjects.map("$KV.b.k") == "$KV.a.k"
    assert renames.subjects.map("$O.o.M.eA==") == "$O.p.M.eA=="
    assert renames.subjects.map("$KV.c.k") == "$KV.c.k"
    assert (
        renames.object_bucket("o") == "p" and renames.object_bucket("a") == "a" and renames.object_bucket("\n") == "\n"
    )


@pytest.mark.parametrize(
    ("text", "name", "becomes"),
    [
        ("test_*=*", "test_A", "A"),
        ("test_*=*", "A", "A"),
        ("*_old=*_new", "KV_a_old", "KV_a_new"),
        ("*_old=X*", "OBJ_a_old", "OBJ_Xa"),
        ("KV_*=KV_x*", "KV_a", "KV_xa"),
        ("A*B=C*D", "AB", "CD"),
        ("A*A=C*", "A", "A"),
        ("*=*", "A", "A"),
        ("*V_a=*x", "KV_a", "Kx"),
    ],
)
def test_a_pattern_keeps_what_its_star_stands_for(text: str, name: str, becomes: str) -> None:
    options = RenameOptions.parse([text])
    if (name, becomes) == ("KV_a", "Kx"):
        with pytest.raises(UsageError, match="KV_a is a key-value bucket and cannot become Kx"):
            options.over({name: {}})
    else:
        assert options.over({name: {}}).name(name) == becomes


def test_a_pattern_that_meets_no_stream_is_unknown_but_all_may_be_none() -> None:
    options = RenameOptions.parse(["A*=B*", "C=D", "*=x*"])
    assert options.unknown([]) == ["A*", "C"] == options.unknown(["B"])
    assert options.unknown(["AB"]) == ["C"]
    assert options.among(["AB"]) == RenameOptions.parse(["A*=B*", "*=x*"])


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["A"], "not OLD=NEW"),
        (["A="], "not a stream name"),
        (["=A"], "not a stream name"),
        (["A=a.b"], "not a stream name"),
        (["A=a b"], "not a stream name"),
        (["A=a/b"], "not a stream name"),
        (["A=" + "x" * 256], "not a stream name"),
        (["A=\udc80"], "not a stream name"),
        (["A=B", "A=C"], "two names for A"),
        (["A=C", "B=C"], "would both be called C"),
        (["KV_a=plain"], "KV_a is a key-value bucket and cannot become plain, which is no bucket"),
        (["plain=KV_a"], "no bucket and cannot become KV_a"),
        (["KV_a=OBJ_a"], "which is an object bucket"),
        (["KV_a=KV_ä"], "which is no bucket"),
        (["plain=KV_ä"], "would look like a key-value bucket"),
        (["$MQTT_msgs=x"], "finds it by its name"),
        (["*=A"], "not one . on both sides"),
        (["A=*"], "not one . on both sides"),
        (["**=A**"], "not one . on both sides"),
        (["*="], "not one . on both sides"),
        (["*=a.b*"], "not a stream name"),
    ],
)
def test_renames_that_cannot_be_are_usage_errors(texts: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        RenameOptions.parse(texts)


@pytest.mark.parametrize(
    ("options", "streams", "said"),
    [
        (RenameOptions.parse(["A=B"]), ["A", "B"], "A and B would both be called B"),
        (RenameOptions.parse(["*=ä*"]), ["KV_a"], "which is no bucket"),
        (RenameOptions.parse(["*=" + "x" * 250 + "*"]), ["ORDERS"], "not a stream name"),
        (RenameOptions.parse(["*=p_*"]), ["$MQTT_sess"], "finds it by its name"),
        (RenameOptions.parse(["*=KV_*"]), ["A"], "which is a key-value bucket"),
        (RenameOptions.parse(["*=x*", "A=B"]), ["A"], "--rename: two names for A: B and xA"),
        (RenameOptions.parse(["A*=X*", "B*=X*"]), ["A1", "B1"], "A1 and B1 would both be called X1"),
    ],
)
def test_what_shows_only_with_the_streams_is_a_usage_error_too(
    options: RenameOptions, streams: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        options.over({name: {} for name in streams})


def test_what_is_called_like_a_bucket_and_cannot_be_one_is_none() -> None:
    assert bucket_of("KV_a") == (StreamKind.KEY_VALUE, "a")
    assert bucket_of("OBJ_a-b_c") == (StreamKind.OBJECT, "a-b_c")
    for name in ("KV_", "KV_ä", "KV_a\n", "kv_a", "XKV_a"):
        assert bucket_of(name) == (StreamKind.STREAM, name)


@settings(deadline=None)
@given(st.text(max_size=20), st.text(max_size=10))
def test_any_text_is_a_rename_or_a_usage_error(text: str, prefix: str) -> None:
    with suppress(UsageError):
        RenameOptions.parse([text]).over({text.partition("=")[0]: {}, "KV_a": {}})
    with suppress(UsageError):
        RenameOptions.parse([f"*={prefix}*"]).over({text: {}})
