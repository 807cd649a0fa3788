"""Check that a statement is a plain query, which only reads the given views.

Spark's SQL also writes folders (`WITH … INSERT OVERWRITE DIRECTORY`), reads any file (``text.`/etc/passwd` ``), starts
programs (`SELECT TRANSFORM … USING`) and calls Java (`reflect`). So the plan of Spark's parser is checked before
anything runs. The allowed kinds of plans, names of relations and groups of functions are listed here. Additions of a
new release of Spark are refused until they are in the list.

A client of Spark Connect has no parser. There the statement has to be a query by Spark's grammar, a setting of Spark
disables paths as tables, and the few words that call Java or start programs are refused anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from jsbackup.errors import UsageError
from jsbackup.pipeline.queries.query_model import QUERY_HINT, no_view, view_names
from jsbackup.pipeline.session.connect import is_remote
from jsbackup.repository.manifest import StreamBackup

__all__ = ["only_plain"]

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical."
_ANALYSIS: Final = "org.apache.spark.sql.catalyst.analysis."
_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."


def _names(text: str, prefix: str = "", suffix: str = "") -> frozenset[str]:
    return frozenset(f"{prefix}{name}{suffix}" for name in text.split())


# Plans that only read, as the parser produces them.
_PLANS: Final = frozenset().union(
    _names(
        "Aggregate AsOfJoin CTERelationDef CTERelationRef Deduplicate Distinct Except Filter Generate GlobalLimit "
        "Intersect Join LateralJoin LocalLimit LocalRelation Offset OneRowRelation ParameterizedQuery Pivot Project "
        "Repartition RepartitionByExpression Sample Sort SubqueryAlias Tail Union UnresolvedHint UnresolvedWith "
        "Unpivot Window WithWindowDefinition",
        _LOGICAL,
    ),
    _names(
        "UnresolvedHaving UnresolvedInlineTable UnresolvedQualify UnresolvedRelation UnresolvedSubqueryColumnAliases "
        "UnresolvedTVFAliases UnresolvedTableValuedFunction",
        _ANALYSIS,
    ),
    {_EXPRESSIONS + "PipeOperator"},
)
_RELATION: Final = _ANALYSIS + "UnresolvedRelation"
_WITH: Final = _LOGICAL + "UnresolvedWith"
_TABLE_FUNCTION: Final = _ANALYSIS + "UnresolvedTableValuedFunction"
_FUNCTION: Final = _ANALYSIS + "UnresolvedFunction"
_GENERATOR: Final = _ANALYSIS + "UnresolvedGenerator"
_LITERAL: Final = _EXPRESSIONS + "Literal"
# The first is a function whose name is computed.
_NEVER: Final = frozenset({_ANALYSIS + "ExpressionWithUnresolvedIdentifier", _EXPRESSIONS + "CallMethodViaReflection"})

_TABLE_FUNCTIONS: Final = _names(
    "collations explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range sql_keywords "
    "stack variant_explode variant_explode_outer"
)
# Groups of Spark's functions that only compute. Other groups contain functions that call Java, take the path of a file
# (`from_protobuf`) or a URL (`from_avro`).
_GROUPS: Final = _names(
    "agg array bitwise collection conditional conversion csv datetime generator hash json lambda map math predicate "
    "sketch st string struct url variant vector window",
    suffix="_funcs",
)
_OF_OTHER_GROUPS: Final = _names(
    "aes_decrypt aes_encrypt assert_true bitmap_bit_position bitmap_bucket_number bitmap_count current_catalog "
    "current_database current_schema current_user hmac monotonically_increasing_id raise_error session_user "
    "spark_partition_id to_xml try_aes_decrypt typeof user uuid version xpath xpath_boolean xpath_double xpath_float "
    "xpath_int xpath_long xpath_number xpath_short xpath_string"
)

# For Spark Connect. A name can be written in backquotes, but not with escapes.
_GAP: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_CALLS_OUT: Final = re.compile(
    rf"\b(reflect|java_method|try_reflect|from_avro|from_protobuf|from_xml)\b|\b(identifier)`?{_GAP}\(|"
    rf"\b(using){_GAP}r?['\"]",
    re.IGNORECASE | re.DOTALL,
)
_NO_FILES: Final = "spark.sql.runSQLOnFiles"


@contextmanager
def only_plain(session: SparkSession, sql: str, streams: Sequence[StreamBackup]) -> Iterator[None]:
    """Allow running `sql` inside, if it is one query that only reads views of `streams`.

    Raises:
        UsageError: it is not such a query.
        ParseException: Spark's parser does not understand it.
    """
    if not is_remote(session):
        _check_plan(session, sql, streams)
        yield
        return
    before = session.conf.get(_NO_FILES, None)
    session.conf.set(_NO_FILES, "false")
    try:
        _check_text(session, sql)
        yield
    finally:
        if before is None:
            session.conf.unset(_NO_FILES)
        else:
            session.conf.set(_NO_FILES, before)


def _check_text(session: SparkSession, sql: str) -> None:
    if found := _CALLS_OUT.search(sql):
        word = next(filter(None, found.groups()))
        raise UsageError(f"queries over Spark Connect may not hold the word {word.lower()}", hint=QUERY_HINT)
    try:
        # Only a query is allowed in these brackets; in no other statement brackets are closed before they are opened.
        session.sql(f"WITH jsbackup_query AS (\n{sql.rstrip().rstrip(';')}\n) SELECT * FROM jsbackup_query")
    except ParseException as error:
        raise UsageError("the query is not a plain SELECT, or cannot be parsed", hint=QUERY_HINT) from error


def _check_plan(session: SparkSession, sql: str, streams: Sequence[StreamBackup]) -> None:
    views = {name.lower() for name in view_names(streams)}
    state = session._jsparkSession.sessionState()
    plan = _Plan(session._jvm)
    plan.walk(state.sqlParser().parsePlan(sql))
    for name in plan.relations:
        if len(name) > 1 or name[0].lower() not in {*views, *plan.made}:
            raise no_view(".".join(name), streams)
    functions = state.functionRegistry()
    for name in plan.functions:
        if len(name) > 1 or not _computes(session._jvm, functions, name[0]):
            raise UsageError(
                f"the query calls {'.'.join(name)[:200]}, which queries may not call",
                hint="They may call functions of Spark that only compute.",
            )
    for name in plan.table_functions:
        if len(name) > 1 or name[0].lower() not in _TABLE_FUNCTIONS:
            raise UsageError(f"the query reads {'.'.join(name)[:200]}(), which queries may not read", hint=QUERY_HINT)


def _computes(jvm: Any, functions: Any, name: str) -> bool:
    if name.lower() in _OF_OTHER_GROUPS:
        return True
    some = jvm.scala.Option.apply
    known = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name.lower(), some("builtin"), some("system"))
    found = functions.lookupFunction(known)
    return bool(found.isDefined()) and found.get().getGroup() in _GROUPS


class _Plan:
    """Walks through a plan of the parser, including subqueries and the definitions of WITH."""

    def __init__(self, jvm: Any) -> None:
        self._is = jvm.py4j.reflection.TypeUtil.isInstanceOf
        self.relations: list[list[str]] = []
        self.made: set[str] = set()  # names defined by WITH
        self.functions: list[list[str]] = []
        self.table_functions: list[list[str]] = []

    def walk(self, root: Any) -> None:
        """Collect the names in a plan. Raises UsageError for parts that a plain query does not have."""
        waiting = [root]
        while waiting:
            one = waiting.pop()
            if not hasattr(one, "getClass"):  # a text, number or boolean
                continue
            kind = str(one.getClass().getName())
            if kind == _LITERAL:
                continue
            if self._is("scala.collection.Iterable", one):
                waiting += _items(one.iterator())
            elif self._is("scala.Product", one):
                self._look(kind, one)
                waiting += _items(one.productIterator())

    def _look(self, kind: str, one: Any) -> None:
        if kind in _PLANS:
            if kind == _RELATION:
                self.relations.append(_items(one.multipartIdentifier().iterator()))
            elif kind == _TABLE_FUNCTION:
                self.table_functions.append(_items(one.name().iterator()))
            elif kind == _WITH:
                self.made.update(str(named._1()).lower() for named in _items(one.cteRelations().iterator()))
        elif self._is("org.apache.spark.sql.catalyst.expressions.Expression", one):
            if kind in _NEVER or not kind.startswith((_EXPRESSIONS, _ANALYSIS)):
                raise _not_plain(kind)
            if kind == _FUNCTION:
                self.functions.append(_items(one.nameParts().iterator()))
            elif kind == _GENERATOR:
                self.functions.append(one.name().unquotedString().split("."))
        elif self._is("org.apache.spark.sql.catalyst.trees.TreeNode", one):
            raise _not_plain(kind)


def _not_plain(kind: str) -> UsageError:
    return UsageError(f"only plain queries are run, and this one holds {kind.rpartition('.')[2]}", hint=QUERY_HINT)


def _items(iterator: Any) -> list[Any]:
    found = []
    while iterator.hasNext():
        found.append(iterator.next())
    return found
