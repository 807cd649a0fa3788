"""Options and environment → how to reach S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsbackup.config import s3_settings
from jsbackup.errors import UsageError
from jsbackup.model import S3Settings
from tests.engine.identities import Authority


def test_nothing_given_leaves_everything_to_the_aws_configuration() -> None:
    assert s3_settings({}, {}) == S3Settings()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("endpoint", "http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("region", "eu-west-1", "eu-west-1"),
        ("profile", "backup", "backup"),
        ("path_style", "false", False),
        ("sse", "AES256", "AES256"),
        ("storage_class", "STANDARD_IA", "STANDARD_IA"),
    ],
)
def test_each_value_comes_by_option_or_by_environment(name: str, value: str, expected: object) -> None:
    variable = f"JSBACKUP_S3_{name.upper()}"
    assert getattr(s3_settings({}, {variable: value}), name) == expected
    given = False if expected is False else value
    assert getattr(s3_settings({f"s3_{name}": given}, {}), name) == expected
    assert getattr(s3_settings({f"s3_{name}": given}, {variable: "true"}), name) == expected  # the option wins
    assert getattr(s3_settings({}, {variable: ""}), name) is None


def test_authorities_are_looked_at(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    assert s3_settings({"s3_ca": str(authority.cert)}, {}).ca == str(authority.cert)
    assert s3_settings({}, {"JSBACKUP_S3_CA": str(authority.cert)}).ca == str(authority.cert)
    (tmp_path / "junk.pem").write_text("no certificate")
    for path in (tmp_path / "junk.pem", tmp_path / "missing.pem", tmp_path):
        with pytest.raises(UsageError, match="no certificate authorities can be read from"):
            s3_settings({"s3_ca": str(path)}, {})


def test_the_variables_of_the_aws_tools_stand_in() -> None:
    aws = {"AWS_ENDPOINT_URL": "http://a", "AWS_REGION": "r"}
    assert s3_settings({}, aws) == S3Settings(endpoint="http://a", region="r")
    more = aws | {"AWS_ENDPOINT_URL_S3": "http://b", "AWS_DEFAULT_REGION": "d"}
    assert s3_settings({}, more) == S3Settings(endpoint="http://b", region="r")
    assert s3_settings({}, more | {"JSBACKUP_S3_ENDPOINT": "http://c"}).endpoint == "http://c"


def test_a_kms_key_is_for_kms() -> None:
    settings = s3_settings({"s3_sse": "aws:kms"}, {"JSBACKUP_S3_SSE_KMS_KEY": "key-1"})
    assert (settings.sse, settings.sse_kms_key) == ("aws:kms", "key-1")
    for given in ({"s3_sse_kms_key": "key-1"}, {"s3_sse_kms_key": "key-1", "s3_sse": "AES256"}):
        with pytest.raises(UsageError, match="not encryption with KMS"):
            s3_settings(given, {})


@pytest.mark.parametrize(
    "url",
    [
        "store:9000",
        "ftp://store",
        "http://",
        "http://store:port",
        "http://store:99999",
        "http://[",
        "http://key:secret@store",
        "http://store?secret=1",
        "http://store#x",
        "http://sto re",
        "http://größe",
        "http://store\n",
    ],
)
def test_an_endpoint_that_makes_no_sense_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="the S3 endpoint") as caught:
        s3_settings({"s3_endpoint": url}, {})
    assert "secret" not in caught.value.message + str(caught.value.hint)


@pytest.mark.parametrize("environ", [{"JSBACKUP_S3_SSE": "ROT13"}, {"JSBACKUP_S3_PATH_STYLE": "maybe"}])
def test_other_values_that_make_no_sense_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        s3_settings({}, environ)
