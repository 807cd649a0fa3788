from __future__ import annotations

from jsbackup.readable import alike, in_sentences, in_short, of_streams, without_name


def test_names_in_short() -> None:
    assert in_short(["a", "b"]) == "a, b"
    assert in_short([str(number) for number in range(5)]) == "0, 1, 2, 3 and 1 more"
    assert in_short(["a", "b"], most=1) == "a and 1 more" and in_short(["a"], most=1) == "a"
    assert in_short(["a"] * 2000, most=1) == "a and 1,999 more"


def test_a_text_without_a_name_keeps_longer_names() -> None:
    assert without_name("S", "S, S-1, x.S and MOST of $S.>") == "<stream>, S-1, x.<stream> and MOST of $<stream>.>"
    assert without_name("", "all of it") == "all of it"


def test_items_of_equal_text_are_together_in_the_order_of_their_first() -> None:
    items = [(1, "A", "a", None), (2, "A", "b", None), (3, "B", "a", None)]
    assert alike(items) == [[1, 3], [2]]


def test_many_rare_texts_of_one_kind_are_together() -> None:
    common = [(number, f"S{number}", "common", "kind") for number in range(5)]
    rare = [(number, f"S{number}", f"rare {number}", "kind") for number in range(10, 15)]
    other = [(number, f"S{number}", f"other {number}", None) for number in range(20, 26)]
    assert alike([*common, *rare, *other]) == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14], *([n] for n in range(20, 26))]
    assert alike(rare[:4]) == [[10], [11], [12], [13]]


def test_of_many_texts_of_few_names_the_first_stay_apart() -> None:
    items = [(number, "WIDE", f"text {number}", "kind") for number in range(9)]
    assert alike(items) == [[0], [1], [2], [3], [4, 5, 6, 7, 8]]
    assert alike(items[:5]) == [[0], [1], [2], [3], [4]]


def test_equal_reasons_of_many_streams_are_one_sentence() -> None:
    assert of_streams(["A"], "is there") == "stream A: is there"
    assert of_streams([], "all is there") == "all is there"
    reasons = [(f"S{number}", f"may not publish to $JS.S{number}") for number in range(500)]
    assert in_sentences([("A", "is old"), *reasons, ("B", "is old"), ("", "all is old")]) == [
        "each of the streams A, B: is old",
        "each of 500 streams (S0, S1, S2, S3 and 496 more): may not publish to $JS.<stream>",
        "all is old",
    ]
    assert in_sentences(reasons[:1]) == ["stream S0: may not publish to $JS.S0"]
