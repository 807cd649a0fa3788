from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, JsBackupError, PlanRefused
from jsbackup.transforms.follow import arriving_unmapped, map_consumer_config, map_stream_config, may_hold, subjects_of
from jsbackup.transforms.subject_map import SubjectMap, SubjectMaps
from tests.transforms.messages import all_literals
from tests.transforms.test_subject_map import maps
from tests.transforms.test_subjects import by_the_rule

UNIVERSE = all_literals(3, "abc")
STAGING = SubjectMaps.parse(["orders.>=>staging.orders.>"])


def test_a_stream_follows_in_every_field_and_keeps_all_others() -> None:
    config = {
        "name": "ORDERS",
        "subjects": ["orders.>", "bills.*"],
        "max_age": 5,
        "unheard_of": {"x": 1},
        "republish": {"src": "orders.*.eu", "dest": "seen.$1", "headers_only": True},
        "subject_transform": {"src": "orders.in.*", "dest": "orders.{{wildcard(1)}}"},
    }
    before = repr(config)
    assert map_stream_config(config, STAGING, ["ORDERS"]) == {
        **config,
        "subjects": ["staging.orders.>", "bills.*"],
        "republish": {"src": "staging.orders.*.eu", "dest": "seen.$1", "headers_only": True},
        "subject_transform": {"src": "staging.orders.in.*", "dest": "staging.orders.$1"},
    }
    assert repr(config) == before


@pytest.mark.parametrize(
    ("origin", "mapped", "becomes"),
    [
        ({"name": "O"}, ["O"], {"name": "O"}),
        ({"name": "O", "filter_subject": "orders.x"}, ["O"], {"name": "O", "filter_subject": "staging.orders.x"}),
        ({"name": "O", "filter_subject": "orders.x"}, [], {"name": "O", "filter_subject": "orders.x"}),
        (
            {"name": "O", "filter_subject": "orders.x", "external": {"api": "$JS.hub.API"}},
            ["O"],
            {"name": "O", "filter_subject": "orders.x", "external": {"api": "$JS.hub.API"}},
        ),
        (
            {"name": "O", "subject_transforms": [{"src": "raw.*", "dest": "orders.$1"}]},
            ["O"],
            {"name": "O", "subject_transforms": [{"src": "raw.*", "dest": "staging.orders.$1"}]},
        ),
        (
            {"name": "O", "subject_transforms": [{"src": "orders.*", "dest": "copy.$1"}]},
            ["O"],
            {"name": "O", "subject_transforms": [{"src": "staging.orders.*", "dest": "copy.$1"}]},
        ),
        (
            {"name": "O", "subject_transforms": [{"src": "orders.*", "dest": "copy.$1"}]},
            [],
            {"name": "O", "subject_transforms": [{"src": "orders.*", "dest": "copy.$1"}]},
        ),
        (
            {"name": "O", "subject_transforms": [{"src": "orders.*", "dest": ""}]},
            ["O"],
            {"name": "O", "subject_transforms": [{"src": "staging.orders.*", "dest": ""}]},
        ),
        (
            {"name": "O", "subject_transforms": [{"src": "a.*", "dest": "b.{{partition(3,1)}}"}]},
            ["O"],
            {"name": "O", "subject_transforms": [{"src": "a.*", "dest": "b.{{partition(3,1)}}"}]},
        ),
    ],
)
def test_origins_follow_on_the_sides_that_are_mapped(origin: Any, mapped: list[str], becomes: Any) -> None:
    assert map_stream_config({"mirror": origin}, STAGING, mapped) == {"mirror": becomes}
    assert map_stream_config({"sources": [origin, {"name": "P"}]}, STAGING, mapped)["sources"] == [
        becomes,
        {"name": "P"},
    ]


@pytest.mark.parametrize(
    ("maps", "config", "said"),
    [
        (["*.x=>y.$1"], {"republish": {"src": "a.*", "dest": "z.$1"}}, "republish"),
        (["a.b.>=>c.>"], {"subject_transform": {"src": "in.>", "dest": "a.>"}}, "mapped in part"),
        (["a.*=>b"], {"mirror": {"name": "O", "filter_subject": "a.x"}}, "the filter of mirror"),
        (
            ["a.*=>c.$1"],
            {"mirror": {"name": "O", "subject_transforms": [{"src": "i.*", "dest": "a.{{left(1,2)}}"}]}},
            "left",
        ),
        (["a.b=>c"], {"sources": [{"name": "O", "filter_subject": "a.*"}]}, "would have to be c and a"),
        (
            ["a.*.*=>b.$1"],
            {"subject_transform": {"src": "a.*.*", "dest": "z.$2"}},
            "uses wildcard 2, which the map drops",
        ),
        (
            ["a.>=>c.>"],
            {
                "sources": [
                    {"name": "O", "subject_transforms": [{"src": "a.x", "dest": "1"}, {"src": "c.x", "dest": "2"}]}
                ]
            },
            "would add other subjects|overlap",
        ),
    ],
)
def test_what_the_servers_words_cannot_say_is_refused(maps: list[str], config: Any, said: str) -> None:
    with pytest.raises(PlanRefused, match=said):
        map_stream_config(config, SubjectMaps.parse(maps), ["O"])


def transformed(transform: dict[str, str], subject: str) -> str | None:
    """What a server makes of a subject; None if the transform does not take it."""
    src = transform.get("src") or ">"
    if not by_the_rule(src, subject):
        return None
    return SubjectMap(src, transform["dest"]).map(subject) if transform.get("dest") else subject


@settings(deadline=None)
@given(maps(), st.lists(maps(), min_size=1, max_size=2))
def test_transforms_lead_from_mapped_subjects_to_mapped_subjects(transform: SubjectMap, some: list[SubjectMap]) -> None:
    mapped = SubjectMaps(tuple(some))
    config = {"sources": [{"name": "O", "subject_transforms": [{"src": transform.source, "dest": transform.dest}]}]}
    try:
        (after,) = map_stream_config(config, mapped, ["O"])["sources"][0]["subject_transforms"]
    except PlanRefused:
        return
    stays = after["src"] == transform.source and mapped.meets(transform.source)  # takes mapped subjects as they come
    for subject in UNIVERSE:
        if not by_the_rule(transform.source, subject):
            continue
        comes = mapped.map(subject)
        if transform.source == transform.dest == ">":
            assert transformed(after, comes) == comes
        else:
            assert transformed(after, comes) == mapped.map(transform.map(comes if stays else subject) or "")


@pytest.mark.parametrize(
    ("config", "becomes"),
    [
        ({"filter_subject": "orders.x"}, {"filter_subject": "staging.orders.x"}),
        ({"filter_subjects": ["orders.x", "bills.x"]}, {"filter_subjects": ["staging.orders.x", "bills.x"]}),
        ({"filter_subjects": ["orders.x"]}, {"filter_subject": "staging.orders.x"}),
        ({"filter_subject": "", "filter_subjects": None}, {"filter_subject": "", "filter_subjects": None}),
        ({"deliver_subject": "orders.x"}, {"deliver_subject": "orders.x"}),
        ({"filter_subject": ">"}, {"filter_subject": ">"}),
    ],
)
def test_consumers_follow_with_their_filters_only(config: Any, becomes: Any) -> None:
    assert map_consumer_config(config, STAGING) == becomes


def test_copies_from_where_nothing_is_mapped_are_named() -> None:
    config = {
        "sources": [
            {"name": "HERE"},
            {"name": "THERE"},
            {"name": "OTHER", "filter_subject": "bills.>"},
            {"name": "HERE", "external": {"api": "x"}},
            {"name": "TURNED", "subject_transforms": [{"src": "a", "dest": "orders.a"}]},
        ]
    }
    assert arriving_unmapped(config, STAGING, ["HERE"]) == ["THERE", "HERE"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "a.>", ">", "$1", "a..b", "\udc80", "{{x}}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "src", "dest", "filter_subject", "subject_transforms", "x"]), inner)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["subjects", "mirror", "sources", "republish", "subject_transform", "filter_subject", "filter_subjects"]
        ),
        json_values,
    )
)
def test_damaged_configs_are_an_error_with_a_name(config: Any) -> None:
    maps = SubjectMaps.parse(["a.>=>b.>", "c.*=>d"])
    for follow in (
        lambda: map_stream_config(config, maps, ["a"]),
        lambda: map_consumer_config(config, maps, ["a.>"]),
        lambda: subjects_of(config),
        lambda: arriving_unmapped(config, maps, ["a"]),
    ):
        try:
            follow()
        except JsBackupError as error:
            assert isinstance(error, (FormatError, PlanRefused))


@pytest.mark.parametrize(
    ("config", "holds"),
    [
        ({"subjects": ["a.>", "b"]}, ["a.>", "b"]),
        ({}, [">"]),
        ({"subjects": ["a"], "subject_transform": {"src": "a", "dest": "b.c"}}, ["a", "b.c"]),
        (
            {"subjects": ["a.*"], "subject_transform": {"src": "a.*", "dest": "b.$1.{{wildcard(1)}}.c"}},
            ["a.*", "b.*.>"],
        ),
        ({"sources": [{"name": "THERE"}]}, []),
        ({"subjects": ["a"], "sources": [{"name": "THERE"}, {"name": "ELSE"}]}, ["a", ">"]),
        ({"sources": [{"name": "ELSE", "filter_subject": "x.>"}]}, ["x.>"]),
        ({"sources": [{"name": "THERE", "external": {"api": "$JS.X.API"}}]}, [">"]),
        ({"sources": [{"name": "THERE", "subject_transforms": [{"src": "a.>", "dest": "t.>"}]}]}, ["t.>"]),
        ({"mirror": {"name": "THERE"}}, []),
        ({"mirror": {"name": "ELSE"}}, [">"]),
        ({"mirror": {"name": "KV_ELSE"}}, ["$KV.ELSE.>"]),
    ],
)
def test_what_a_stream_may_hold_beside_what_its_origins_have(config: dict[str, Any], holds: list[str]) -> None:
    assert list(may_hold({"name": "S", **config}, {"S", "THERE"})) == holds
