"""Configs as files: equal configs are equal files, and what people write wrong is said in their words."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, UsageError
from jsbackup.exchange.config_files import (
    StreamConfigs,
    encode_config,
    read_config_files,
    refuse_values,
    without_server_metadata,
    write_config_files,
)
from jsbackup.exchange.folder import Folder, NewFolder
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from tests.exchange.folders import tree


def write(path: Path, *streams: StreamConfigs) -> dict[str, bytes]:
    with NewFolder(path, "token", 0o777) as new:
        write_config_files(new, streams)
        new.commit()
    return tree(path)


def read(path: Path) -> list[StreamConfigs]:
    with Folder.open(path) as root:
        return read_config_files(root)


def put(path: Path, name: str, content: Any) -> None:
    file = path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


NAMES = st.text(min_size=1, max_size=255).filter(asset_name_is_sound)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4).filter(str.isprintable), inner, max_size=3)
    ),
    max_leaves=8,
)


def _is_read(config: dict[str, Any]) -> bool:
    """Whether reading does not refuse one of its values, such as a negative duration."""
    try:
        refuse_values("", config)
    except UsageError:
        return False
    return True


CONFIGS = st.dictionaries(
    st.sampled_from(["subjects", "max_age", "placement", "größe", "metadata", "new in 2.99"]), VALUES, max_size=4
).filter(_is_read)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(NAMES, st.tuples(CONFIGS, st.dictionaries(NAMES, CONFIGS, max_size=3)), max_size=3))
def test_writing_reading_and_writing_again_gives_equal_files(drawn: dict[str, Any]) -> None:
    streams = [
        StreamConfigs(
            {**config, "name": name}, {one: {**value, "name": one} for one, value in sorted(consumers.items())}
        )
        for name, (config, consumers) in sorted(drawn.items())
    ]
    with tempfile.TemporaryDirectory() as folder:
        first = write(Path(folder) / "first", *streams)
        again = read(Path(folder) / "first")
        assert write(Path(folder) / "again", *again) == first
    assert [stream.name for stream in again] == sorted(drawn)
    for before, after in zip(streams, again, strict=True):
        assert after.config == without_server_metadata(before.config)
        assert after.consumers == {name: without_server_metadata(one) for name, one in before.consumers.items()}


def test_files_are_sorted_indented_and_without_what_servers_write() -> None:
    config = {"name": "A", "max_age": 0, "metadata": {"_nats.ver": "2.15.1", "own": "größe"}, "a": {"c": 1, "b": []}}
    assert encode_config(config).decode() == (
        '{\n  "a": {\n    "b": [],\n    "c": 1\n  },\n  "max_age": 0,\n  "metadata": {\n    "own": "größe"\n  },\n'
        '  "name": "A"\n}\n'
    )
    assert encode_config({"name": "A", "metadata": {"_nats.level": "1"}}) == b'{\n  "name": "A"\n}\n'


def test_names_become_file_names_as_in_the_repository(tmp_path: Path) -> None:
    config = {"name": "größe", "storage": "file"}
    files = write(
        tmp_path / "out", StreamConfigs(config, {"a:b": {"name": "a:b"}}), StreamConfigs({"name": "N" * 255}, {})
    )
    stream, consumer, long = sorted(files, key=lambda name: (len(name), name))
    assert stream == "streams/gr%C3%B6%C3%9Fe.json"
    assert consumer == "consumers/gr%C3%B6%C3%9Fe/a%3Ab.json"
    assert long.startswith("streams/NNNN")
    assert len(long) < 200
    assert [one.name for one in read(tmp_path / "out")] == ["N" * 255, "größe"]


def test_no_two_files_differ_in_case_only(tmp_path: Path) -> None:
    consumers = {name: {"name": name} for name in ("c", "C", "d")}
    streams = [StreamConfigs({"name": name}, consumers) for name in ("UPPER", "other", "upper", "N" * 255, "n" * 255)]
    files = write(tmp_path / "out", *streams)
    assert len({name.lower() for name in files}) == len(files) == 5 + 15
    assert {"streams/other.json", "consumers/other/d.json"} < files.keys()
    assert sum(name.startswith(("streams/UPPER.", "streams/upper.")) for name in files) == 2
    assert read(tmp_path / "out") == sorted(streams, key=lambda one: one.name)


def test_a_file_name_with_a_digest_is_one_of_the_same_config(tmp_path: Path) -> None:
    config = {"name": "A"}
    files = write(tmp_path / "out", StreamConfigs(config, {}), StreamConfigs({"name": "a"}, {}))
    (digest,) = [name for name in files if name.startswith("streams/A.")]
    put(tmp_path / "one", digest, config)
    assert [one.name for one in read(tmp_path / "one")] == ["A"]
    put(tmp_path / "one", "streams/A.json", config)
    with pytest.raises(UsageError, match=r"streams/A\.json: there are two configurations of stream A"):
        read(tmp_path / "one")
    stem = digest.removeprefix("streams/A.")
    put(tmp_path / "two", "streams/S.json", {"name": "S"})
    for file in ("A.json", f"A.{stem}"):
        put(tmp_path / "two", f"consumers/S/{file}", config)
    with pytest.raises(
        UsageError, match=r"consumers/S/A\..*json: there are two configurations of consumer A of stream S"
    ):
        read(tmp_path / "two")
    put(tmp_path / "three", digest.replace("A.", "B."), config)
    with pytest.raises(UsageError, match="is the config of A"):
        read(tmp_path / "three")


def test_a_consumer_has_its_name_in_its_file_whatever_its_config_says(tmp_path: Path) -> None:
    files = write(tmp_path / "out", StreamConfigs({"name": "A"}, {"c": {"durable_name": "c"}}))
    assert json.loads(files["consumers/A/c.json"]) == {"durable_name": "c", "name": "c"}


def test_a_consumer_may_be_named_by_its_durable_name_alone(tmp_path: Path) -> None:
    put(tmp_path, "streams/A.json", {"name": "A"})
    put(tmp_path, "consumers/A/c.json", {"durable_name": "c"})
    assert read(tmp_path) == [StreamConfigs({"name": "A"}, {"c": {"durable_name": "c"}})]


def test_what_else_lies_around_in_a_working_copy_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "streams/A.json", {"name": "A"})
    for name in (".git/config", "README.md", "streams/.gitkeep", "consumers/.gitkeep", "other/x.json"):
        put(tmp_path, name, b"x")
    assert [stream.name for stream in read(tmp_path)] == ["A"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("streams/B.json", b"", r"streams/B.json is not JSON: expecting value in line 1, column 1"),
        ("streams/B.json", b'{\n  "name": "B",\n}', r"streams/B.json is not JSON: .* in line [23], column"),
        ("streams/B.json", b"\xff", r"streams/B.json is not JSON: it is not UTF-8"),
        ("streams/B.json", b"[]", r"streams/B.json is not a JSON object"),
        ("streams/B.json", b"[" * 100_000, r"streams/B.json is not JSON"),
        ("streams/B.json", b'{"name":"B","x":1e999}', r"streams/B.json is not JSON"),
        ("streams/B.json", b'{"name":"B","x":NaN}', r"streams/B.json is not JSON"),
        ("streams/B.json", b'{"name":"B","x":' + b"9" * 5000 + b"}", r"streams/B.json is not JSON"),
        ("streams/B.json", b'{"name":"B","x":"\\ud800"}', r"streams/B.json is not JSON: it has half a surrogate pair"),
        ("streams/B.json", b'{"name":"B","max_age":1,"max_age":2}', r'streams/B.json has the name "max_age" twice'),
        ("streams/B.json", {}, r"streams/B.json has no name that NATS allows: ''"),
        ("streams/B.json", {"name": 5}, r"streams/B.json has no name that NATS allows"),
        ("streams/B.json", {"name": "../B"}, r"streams/B.json has no name that NATS allows"),
        ("streams/B.json", {"name": "A"}, r"streams/B.json is the config of A"),
        ("streams/B.yaml", b"", r"streams/B.yaml is not a config file"),
        ("streams/B.json~", b"", r"streams/B.json~ is not a config file"),
        ("streams/b/c.json", {"name": "c"}, r"streams/b is a folder"),
        ("consumers/B/c.json", {"name": "c"}, r"consumers/B has consumers of no stream: streams/B.json is missing"),
        ("consumers/c.json", {"name": "c"}, r"consumers/c.json is not a folder"),
        ("consumers/A/c.json", {"name": "c", "durable_name": "d"}, r"consumers/A/c.json has two names"),
        ("consumers/A/c.json", {"name": "d"}, r"consumers/A/c.json is the config of d"),
    ],
)
def test_what_people_write_wrong_is_a_usage_error_that_names_the_file(
    tmp_path: Path, name: str, content: Any, message: str
) -> None:
    put(tmp_path, "streams/A.json", {"name": "A"})
    put(tmp_path, name, content)
    with pytest.raises(UsageError, match=message):
        read(tmp_path)


def test_a_name_for_a_file_is_suggested(tmp_path: Path) -> None:
    put(tmp_path, "streams/A.json", {"name": "größe"})
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert caught.value.hint == "Call the file gr%C3%B6%C3%9Fe.json, or change the name in it."


def test_links_are_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "secret.json", {"name": "A"})
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "A.json").symlink_to("../secret.json")
    with pytest.raises(UsageError, match=r"streams/A.json is a symbolic link"):
        read(tmp_path)


def test_a_config_that_is_no_json_is_not_written() -> None:
    for value in (float("inf"), {1}, "\ud800"):
        with pytest.raises(FormatError, match="the config of A cannot be written"):
            encode_config({"name": "A", "x": value})
