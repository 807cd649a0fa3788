"""Every answer is checked for its error and its type, and errors say what to do."""

from __future__ import annotations

import json

import pytest

from jsbackup.errors import ApiError, FormatError, TargetConflict
from jsbackup.protocol.responses import (
    TYPE_PREFIX,
    ErrCode,
    as_target_error,
    decode_response,
    is_unknown_field,
    lacks_peers,
    may_pass,
)

INFO = f"{TYPE_PREFIX}stream_info_response"


def failed(err_code: int, description: str = "it failed", code: int = 400, kind: str = INFO) -> bytes:
    return json.dumps(
        {"type": kind, "error": {"code": code, "err_code": err_code, "description": description}}
    ).encode()


def error_of(payload: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode_response(payload, INFO, "stream ORDERS")
    return caught.value


def test_an_answer_of_the_right_type_passes() -> None:
    assert decode_response(json.dumps({"type": INFO, "x": 1}).encode(), INFO) == {"type": INFO, "x": 1}


@pytest.mark.parametrize("document", [{}, {"type": None}, {"type": 7}, {"type": f"{TYPE_PREFIX}stream_names_response"}])
def test_another_type_is_a_format_error(document: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        decode_response(json.dumps(document).encode(), INFO)


def test_an_empty_answer_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="is not JSON"):
        decode_response(b"", INFO)


def test_an_error_carries_both_codes_its_text_and_a_hint() -> None:
    error = error_of(failed(10074, "replicas > 1 not supported in non-clustered mode", 500))
    assert (error.code, error.err_code) == (500, 10074)
    assert error.message == "stream ORDERS: replicas > 1 not supported in non-clustered mode (10074)"
    assert error.hint is not None and "--replicas 1" in error.hint


def test_an_error_counts_whatever_type_it_comes_with() -> None:
    assert error_of(failed(10039, kind=f"{TYPE_PREFIX}system_response")).err_code == ErrCode.NOT_ENABLED_FOR_ACCOUNT
    assert error_of(b'{"error":{"code":503}}').code == 503


@pytest.mark.parametrize("error", [[], "x", {"code": "x"}, {"code": -1}, {"err_code": []}, {"description": 1}])
def test_a_malformed_error_is_a_format_error(error: object) -> None:
    with pytest.raises(FormatError):
        decode_response(json.dumps({"type": INFO, "error": error}).encode(), INFO)


def test_an_unknown_code_has_no_hint_and_no_text_is_said_so() -> None:
    error = error_of(failed(19999, ""))
    assert error.hint is None and error.message == "stream ORDERS: no description (19999)"


def test_the_text_of_a_server_cannot_break_the_line() -> None:
    error = error_of(failed(10059, "gone\r\n\x1b[2Jbad " + "x" * 10_000))
    assert error.message.isprintable() and len(error.message) < 400


def test_hints_are_sentences_for_the_codes_of_well_known_mishaps() -> None:
    for code in (10039, 10076, 10058, 10130, 10052, 10047, 10028, 10023, 10074, 10065, 10008, 10118, 10194, 10025):
        hint = error_of(failed(code)).hint
        assert hint is not None and hint.endswith(".")


def test_temporary_errors_are_told_from_others() -> None:
    assert may_pass(error_of(failed(10008))) and may_pass(error_of(failed(10004)))
    assert not may_pass(error_of(failed(10059))) and not may_pass(error_of(failed(10130)))


def test_servers_not_heard_of_are_told_from_placements_that_fit_none() -> None:
    offline = "no suitable peers for placement, peer offline"
    assert lacks_peers(error_of(failed(10005, offline)))
    assert lacks_peers(error_of(failed(10062, f"restore failed: {offline} (10005)")))
    assert not lacks_peers(error_of(failed(10005, "no suitable peers for placement, tags not matched ['x']")))
    assert not lacks_peers(error_of(failed(10008, "peer offline")))


def test_a_field_the_server_does_not_know_is_recognised() -> None:
    error = error_of(failed(10025, 'invalid JSON: json: unknown field "window_size"'))
    assert is_unknown_field(error, "window_size")
    assert not is_unknown_field(error, "jsck")
    assert not is_unknown_field(error_of(failed(10052, 'unknown field "window_size"')), "window_size")


def test_what_stands_in_the_way_at_the_target_is_a_conflict() -> None:
    for code in (10058, 10130, 10065, 10047, 10028, 10023, 10027):
        error = error_of(failed(code))
        conflict = as_target_error(error)
        assert isinstance(conflict, TargetConflict) and conflict.exit_code == 16
        assert conflict.message == error.message and conflict.hint == error.hint and conflict.__cause__ is error
    wrapped = as_target_error(error_of(failed(10062, "restore failed: error adding stream: subjects overlap (10065)")))
    assert isinstance(wrapped, TargetConflict) and wrapped.hint is not None and "--map-subject" in wrapped.hint
    plain = error_of(failed(10062, "restore failed: 10065 (10062)"))
    assert as_target_error(plain) is plain
    plain = error_of(failed(10062, "restore failed: archive/tar: invalid tar header"))
    assert as_target_error(plain) is plain
