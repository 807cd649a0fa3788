"""Schemas of payloads as text: what Spark's parser makes of it, and one clear sentence for what is no schema."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jsbackup.errors import UsageError
from jsbackup.pipeline.payloads.json_types import alike_fields, as_ddl, is_infer, parse_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.string()]
NAMES = ["a", "b", "A", "_1", "a b`c", "x:y", "é", "😀", "select", "struct", "date", "not", "comment", "1", "a.b"]


def some_type(chance: random.Random, depth: int) -> pa.DataType:
    kind = chance.randrange(4 if depth else 1)
    if kind == 1:
        return pa.list_(some_type(chance, depth - 1))
    if kind == 2:
        return pa.map_(pa.string(), some_type(chance, depth - 1))
    if kind == 3:
        return some_struct(chance, depth - 1)
    precision = chance.randint(1, 38)
    return chance.choice([*PLAIN, pa.decimal128(precision, chance.randint(0, precision))])


def some_struct(chance: random.Random, depth: int) -> pa.StructType:
    return pa.struct([(name, some_type(chance, depth)) for name in chance.sample(NAMES, chance.randint(1, 4))])


def nested(depth: int) -> str:
    return f"a {'ARRAY<' * depth}INT{'>' * depth}"


TEXTS = [
    "id BIGINT, total DOUBLE",
    " id bigint,total Double ",
    "id: long, tiny byte, small short, whole integer, tiny2 TINYINT, small2 SMALLINT",
    "a decimal, b dec(5), c numeric(38, 38), d DECIMAL ( 10 , 2 )",
    "STRUCT<id: BIGINT>",
    "struct < id BIGINT , at: STRUCT<x: DOUBLE NOT NULL COMMENT 'it\\'s', tags: ARRAY<ARRAY<STRING>>> >",
    "m MAP<STRING, MAP<STRING, ARRAY<BOOLEAN>>>",
    "id BIGINT NOT NULL COMMENT \"text > , )\", name STRING COMMENT 'x'",
    "name STRING, -- text\n id BIGINT /* , x INT */",
    "`a b` INT, `c``d` INT, `NOT NULL` INT, `é.x` INT",
    "struct INT, map INT, array STRING, date STRING, string STRING, decimal INT, null INT, comment INT COMMENT 'x'",
    "_a INT, b2 INT, 2b INT",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_means_what_it_means_to_spark(spark: SparkSession, text: str) -> None:
    from pyspark.sql.types import DataType, StructType

    from jsbackup.pipeline.payloads.json_spark import of_spark, to_spark

    found, theirs = parse_schema(text), DataType.fromDDL(text)
    assert isinstance(theirs, StructType)
    assert found == of_spark(theirs) == parse_schema(theirs.json()) == parse_schema(as_ddl(found))
    assert to_spark(found) == DataType.fromDDL(as_ddl(found))


def test_random_types_are_written_as_spark_reads_them(spark: SparkSession) -> None:
    from pyspark.sql.types import DataType, StructType

    from jsbackup.pipeline.payloads.json_spark import of_spark, to_spark

    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(60):
        kind = some_struct(chance, 3)
        text = as_ddl(kind)
        theirs = to_spark(kind)
        assert isinstance(theirs, StructType)
        assert parse_schema(text) == of_spark(theirs) == parse_schema(theirs.json()) == kind, seed
        assert DataType.fromDDL(text) == theirs, seed


def test_the_types_are_those_of_arrow() -> None:
    text = "a BOOLEAN, b TINYINT, c DECIMAL(5,2), d ARRAY<MAP<STRING, DOUBLE>>, e STRUCT<`x y`: INT>"
    kind = parse_schema(text)
    assert kind == pa.struct([
        ("a", pa.bool_()), ("b", pa.int8()), ("c", pa.decimal128(5, 2)),
        ("d", pa.list_(pa.map_(pa.string(), pa.float64()))), ("e", pa.struct([("x y", pa.int32())])),
    ])  # fmt: skip
    assert as_ddl(kind) == text
    assert parse_schema(nested(40)) == parse_schema(as_ddl(parse_schema(nested(40))))


NO_FIELDS = "the schema of the payloads has no fields"
NOT_UNDERSTOOD = "the schema of the payloads cannot be understood: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"{NO_FIELDS}: ''"),
        (" -- nothing", f"{NO_FIELDS}: '-- nothing'"),
        ("BIGINT", f"{NO_FIELDS}: 'BIGINT'"),
        ("array<INT>", f"{NO_FIELDS}: 'array<INT>'"),
        ("decimal(5)", f"{NO_FIELDS}: 'decimal(5)'"),
        ("id", f"{NOT_UNDERSTOOD}the type of the field 'id' is missing"),
        ("id, b INT", f"{NOT_UNDERSTOOD}the type of the field 'id' is missing, before ','"),
        ("id NUMBER", f"{NOT_UNDERSTOOD}there is no type NUMBER"),
        ("id BIGINT,", f"{NOT_UNDERSTOOD}a field is missing at the end"),
        (", id INT", f"{NOT_UNDERSTOOD}',' is no name"),
        ("id INT b INT", f"{NOT_UNDERSTOOD}'b' does not belong there"),
        ("a-b INT", f"{NOT_UNDERSTOOD}'-b INT' is neither a name nor a type"),
        ("id BIGINT>", f"{NOT_UNDERSTOOD}a > is without its <"),
        ("a ARRAY", f"{NOT_UNDERSTOOD}a < is missing after ARRAY"),
        ("a ARRAY<INT", f"{NOT_UNDERSTOOD}a > is missing after ARRAY<…"),
        ("a ARRAY<>", f"{NOT_UNDERSTOOD}a type is missing, before '>'"),
        ("a MAP<STRING>", f"{NOT_UNDERSTOOD}a , is missing after the names of a MAP, before '>'"),
        ("a DECIMAL(x)", f"{NOT_UNDERSTOOD}the digits of a DECIMAL are not a number"),
        ("a DECIMAL(39)", f"{NOT_UNDERSTOOD}DECIMAL(39, 0) has to have 1 to 38 digits"),
        ("a DECIMAL(2, 3)", f"{NOT_UNDERSTOOD}DECIMAL(2, 3) has to have"),
        ("a DECIMAL(2, 1", f"{NOT_UNDERSTOOD}a ) is missing after the digits of a DECIMAL"),
        ("a INT COMMENT b", f"{NOT_UNDERSTOOD}the text of a comment is missing"),
        ("a INT COMMENT 'b", f'{NOT_UNDERSTOOD}"\'b" is neither'),
        ("`a INT", f"{NOT_UNDERSTOOD}'`a INT' is neither"),
        (nested(60), f"{NOT_UNDERSTOOD}more than 50 types are in one another"),
        (nested(100_000), f"{NOT_UNDERSTOOD}more than 50 types are in one another"),
        ("a \udcff", f"{NOT_UNDERSTOOD}it is not valid UTF-8"),
        ("{", f"{NOT_UNDERSTOOD}it is not the JSON of a schema"),
        ('{"type": "struct", "fields": 1}', f"{NOT_UNDERSTOOD}it is not the JSON of a schema"),
        ('{"type": "struct", "fields": [{"name": 1, "type": "long"}]}', f"{NOT_UNDERSTOOD}it is not the JSON"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "number"}]}', f"{NOT_UNDERSTOOD}it is not the JSON"),
        ('{"type": "array", "elementType": "long"}', f"{NOT_UNDERSTOOD}it is not the JSON of a schema"),
        (f'{{"a": {"[" * 100_000}1{"]" * 100_000}}}', f"{NOT_UNDERSTOOD}it is not the JSON of a schema"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "date"}]}', "payloads of JSON have no DATE"),
        ('{"type": "struct", "fields": []}', "a struct of the schema has no fields"),
        ("STRUCT<>", "a struct of the schema has no fields"),
        ("`` INT", "a field of the schema has no name"),
        ("id BIGINT, id STRING", "the schema has the field 'id' twice"),
        ("a STRUCT<x: INT, x: INT>", "the schema has the field 'x' twice"),
        ("a FLOAT", "payloads of JSON have no FLOAT"),
        ("a ARRAY<TIMESTAMP>", "payloads of JSON have no TIMESTAMP"),
        ("a VARCHAR(10)", "payloads of JSON have no VARCHAR"),
        ("a STRING COLLATE UTF8_LCASE", "payloads of JSON have no STRING COLLATE UTF8_LCASE"),
        ("a MAP<BIGINT, INT>", "payloads of JSON have no MAP<BIGINT,INT>"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_schema_is_one_clear_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_schema(text)
    assert raised.value.message.startswith(message) and len(raised.value.message) < 300
    assert raised.value.hint


def test_random_text_is_a_schema_or_one_error() -> None:
    chance = random.Random(seed := random.randrange(1 << 32))
    pieces = [
        "a",
        "INT",
        "STRUCT",
        "ARRAY",
        "MAP",
        "STRING",
        "DECIMAL",
        "<",
        ">",
        "(",
        ")",
        ",",
        ":",
        " ",
        "'x'",
        "`b`",
    ]
    pieces += ["NOT", "NULL", "COMMENT", "5", "--", "\n", "/*", "*/", "{", '"', "é", "FLOAT"]
    for _ in range(3000):
        text = "".join(chance.choice([piece, f" {piece}"]) for piece in chance.choices(pieces, k=chance.randint(1, 9)))
        with suppress(UsageError):
            assert parse_schema(as_ddl(parse_schema(text))) == parse_schema(text), (seed, text)


def test_names_that_differ_only_in_case() -> None:
    assert alike_fields(parse_schema("id INT, name STRING")) is None
    assert alike_fields(parse_schema("id INT, Id STRING")) == ("id", "Id")
    assert alike_fields(parse_schema("id STRUCT<a: INT>, a ARRAY<MAP<STRING, STRUCT<X: INT, x: INT>>>")) == ("X", "x")
    assert is_infer(" INFER ") and not is_infer("infer INT")
