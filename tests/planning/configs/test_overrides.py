"""`--set FIELD=JSON`: any field of a stream's configuration, with a value that it can have."""

from __future__ import annotations

from typing import Any

import pytest

from jsbackup.errors import UsageError
from jsbackup.planning.configs.overrides import parse_override
from jsbackup.planning.model import RestoreOptions
from tests.planning.test_plan import codes, plan, stream


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("max_msgs=1000", "max_msgs", 1000),
        ("max_age=null", "max_age", None),
        ("max_age=7d", "max_age", 7 * 86_400 * 10**9),
        ("duplicate_window=100ms", "duplicate_window", 10**8),
        ('description="a = b"', "description", "a = b"),
        ('subjects=["a.>","b"]', "subjects", ["a.>", "b"]),
        ("allow_direct=true", "allow_direct", True),
        ('retention="interest"', "retention", "interest"),
        ("storage=memory", "storage", "memory"),
        ('placement={"cluster":"x","tags":["y"]}', "placement", {"cluster": "x", "tags": ["y"]}),
        ('metadata={"a":"b"}', "metadata", {"a": "b"}),
    ],
)
def test_a_field_has_its_value(text: str, field: str, value: Any) -> None:
    assert parse_override(text) == (field, value)
    (action,) = plan(stream("S"), fields=dict([parse_override(text)]), clustered=True).actions
    assert action.config.get(field) == value
    assert [change.field for change in action.changes] == ([] if value is None else [field])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_msgs", "is not FIELD=JSON"),
        ("=1", "no field ''"),
        ("maxmsgs=1", "no field 'maxmsgs'"),
        ('name="B"', "no field 'name'"),
        ("max_msgs=many", "not JSON: 'many'"),
        ("max_msgs=NaN", "not JSON"),
        ("max_msgs=7d", "not JSON"),
        ("max_age=7 days and more", "neither a number of nanoseconds nor a duration"),
        ("max_msgs=1.5", "must be a whole number"),
        ("max_msgs=true", "must be a whole number"),
        ("max_msgs=-2", "must be a whole number"),
        ("max_msgs=9223372036854775808", "must be a whole number"),
        ("max_msgs=" + "9" * 5000, "not JSON"),
        ("allow_direct=1", "must be true or false"),
        ('retention="all"', "must be one of limits, interest, workqueue"),
        ("subjects=[]", "must be a list of subjects"),
        ("subjects=[1]", "must be a string"),
        ('subjects=[""]', "must be a list of subjects"),
        ("metadata=" + "[" * 5000, "not JSON"),
        ("mirror=[]", "must be an object"),
    ],
)
def test_what_no_field_can_have_is_a_mistake_of_usage(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=r".*") as caught:
        parse_override(text)
    assert told in caught.value.message


def test_a_glob_says_for_which_streams_and_goes_before_what_is_said_of_all() -> None:
    texts = ("A*:max_msgs=5", "max_msgs=7", "A2:max_msgs=9", "B:storage=memory")
    fields = dict(map(parse_override, texts))
    made = {action.name: action for action in plan(*map(stream, ("A1", "A2", "B", "C")), fields=fields).actions}
    assert [made[name].config["max_msgs"] for name in ("A1", "A2", "B", "C")] == [5, 9, 7, 7]
    assert [made[name].config["storage"] for name in ("A1", "B")] == ["file", "memory"]
    asked = RestoreOptions(fields={"A*:max_age": 1, "max_age": 2}, unitless=frozenset({"max_age"}))
    assert not asked.of_stream("A1").unitless and asked.of_stream("B").unitless
    with pytest.raises(UsageError, match="--set D:max_msgs: no stream to restore is D"):
        plan(stream("A1"), fields={"D:max_msgs": 1})
    assert not plan(stream("A1"), fields={"D:max_msgs": 1}, allow_nothing=True).refusals


def test_subjects_that_have_nothing_of_those_before_are_a_slip() -> None:
    def refused(value: Any, *, meant: bool = False, **config: Any) -> list[int]:
        return codes(plan(stream("S", **config), fields={"subjects": value}, allow_nothing=meant))

    assert refused(["T.>"]) == refused(None) == [15]
    assert refused(["T.>"], meant=True) == refused(None, meant=True) == []
    assert refused(["S.a", "T.>"]) == refused(["S.*"]) == refused(["T.>"], subjects=None) == []
    assert refused(None, sources=[{"name": "O"}]) == []


def test_metadata_of_servers_are_no_change_and_others_like_them_are_listed() -> None:
    written = {"_nats.ver": "2.12.8", "_nats.level": "3", "_nats.req.level": "0", "team": "a"}
    (action,) = plan(stream("S", metadata=written)).actions
    assert action.changes == () and action.config["metadata"] == {"team": "a"}
    (action,) = plan(stream("S", metadata={**written, "_nats.mine": "1"})).actions
    (change,) = action.changes
    assert (change.field, change.after) == ("metadata", {"team": "a"})
    assert change.before == {"_nats.mine": "1", "team": "a"}


def test_what_the_server_changes_with_markers_is_sent_and_listed() -> None:
    (action,) = plan(stream("S", deny_purge=True), fields={"subject_delete_marker_ttl": 10**9}).actions
    assert {change.field: change.after for change in action.changes} == {
        "subject_delete_marker_ttl": 10**9,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
        "deny_purge": False,
    }
    assert "deny_purge" not in action.config and action.config["allow_rollup_hdrs"] is True
    (action,) = plan(stream("S", deny_purge=True, allow_msg_ttl=True)).actions
    assert action.changes == () and action.config["deny_purge"] is True
