"""The file of profiles as a file: names, variables, who may read it, and what is no such file."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsbackup.config import default_config_path, expand_variables, nearest, read_config
from jsbackup.config.profiles import MAX_FILE_BYTES, MAX_LINE_BYTES
from jsbackup.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("s3://b/${SITE}/x${SITE}", "s3://b/north/xnorth"),
        ("$$", "$"),
        ("$${SITE}", "${SITE}"),
        ("$$${SITE}", "$north"),
        ("a.*=>b.$1", "a.*=>b.$1"),
        ("cost $", "cost $"),
        ("${DOLLARS}", "$${SITE}"),  # what a variable holds is not looked at again
        ("${EMPTY}", ""),
    ],
)
def test_variables_are_expanded_once(text: str, expanded: str) -> None:
    assert expand_variables(text, {"SITE": "north", "DOLLARS": "$${SITE}", "EMPTY": ""}) == expanded


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${NOTHING}", "the variable NOTHING is not set"),
        ("/srv/${EMPTY}/repo", "the variable EMPTY is empty"),
        ("${", "not followed by the name"),
        ("${SITE", "not followed by the name"),
        ("${}", "not followed by the name"),
        ("${a b}", "not followed by the name"),
        ("${SITE:-x}", "not followed by the name"),
    ],
)
def test_what_is_no_variable_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        expand_variables(text, {"SITE": "north", "EMPTY": ""})


def test_the_file_lies_where_such_files_lie() -> None:
    assert default_config_path({"HOME": "/home/me"}) == Path("/home/me/.config/jsbackup/config.toml")
    assert default_config_path({"HOME": "/x", "XDG_CONFIG_HOME": "/etc/x"}) == Path("/etc/x/jsbackup/config.toml")


def test_a_file_has_defaults_and_profiles(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[defaults]\nrepo = "r"\n[profiles.a]\n[profiles."b-2.x"]\nserver = "s"\n')
    path.chmod(0o600)
    file = read_config(path)
    assert (file.defaults, file.profile("a"), file.profile("b-2.x")) == ({"repo": "r"}, {}, {"server": "s"})
    assert not file.others_read
    for mode in (0o640, 0o604):
        path.chmod(mode)
        assert read_config(path).others_read
    with pytest.raises(UsageError, match=r"has no profile 'b-2\.y'") as wrong:
        file.profile("b-2.y")
    assert wrong.value.hint == "Did you mean b-2.x?"
    with pytest.raises(UsageError, match="has no profile 'zzz'") as wrong:
        file.profile("zzz")
    assert wrong.value.hint == "There are a, b-2.x."


def test_profiles_are_meant_by_names_and_globs(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("".join(f"[profiles.{name}]\n" for name in ("prod-b", "test", "prod-a", "prod-a2")))
    file = read_config(path)
    assert file.matching(["prod-*"]) == (("prod-a", "prod-a2", "prod-b"), True)
    assert file.matching(["prod-?", "test", "prod-b"]) == (("prod-a", "prod-b", "test"), True)
    assert file.matching(["test", "*"]) == (("test", "prod-a", "prod-a2", "prod-b"), True)
    assert file.matching(["prod-[ab]"]) == (("prod-a", "prod-b"), True)
    assert file.matching(["nobody", "test", "nobody"]) == (("nobody", "test"), False)
    with pytest.raises(UsageError, match=r"has no profile 'other-\*'") as wrong:
        file.matching(["other-*"])
    assert wrong.value.hint == "There are prod-a, prod-a2, prod-b, test."


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('profile = "x"', "unknown key 'profile'"),
        ("[profile.a]", "unknown key 'profile'"),
        ("defaults = 1", "defaults is not a table"),
        ("profiles = []", "profiles is not a table"),
        ("[profiles]\na = 1", "profile a is not a table"),
        ('[profiles."../x"]', "no profile can be named '../x'"),
        ('[profiles.""]', "no profile can be named ''"),
        ("a = ", "is not TOML"),
        ("[a]\n[a]", "is not TOML"),
        ("# " + "x" * MAX_LINE_BYTES, "larger than a config file may be"),
        ("#\n" * (MAX_FILE_BYTES // 2 + 1), "larger than a config file may be"),
        ("x = " + "[" * 4000, "nested too deeply|is not TOML"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_config(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UsageError, match=f"cannot read the config file {path}"):
            read_config(path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        read_config(tmp_path / "binary")


def test_the_nearest_name_is_offered() -> None:
    assert nearest("exlude", ["include", "exclude", "tag"]) == "Did you mean exclude?"
    assert nearest("quite-other", ["exclude"]) is None
