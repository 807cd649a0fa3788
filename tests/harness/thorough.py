"""Which tests wait for a thorough run (`./scripts/test thorough`, before a release): they prove once more, elsewhere or
at another moment, what others prove.

The usual run takes each such test where it fails first as a rule: at the oldest and the newest server, and at some of
the moments of a kill. A test with a meaning of its own does not wait, but for a few that take minutes (`APART`). Whole
files run whole: `./scripts/test tests/integration/test_crash.py` leaves nothing out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.harness.servers import NEWEST, VERSIONS

__all__ = ["APART", "SAMPLED", "waiting"]

_ENDS = frozenset((VERSIONS[0], NEWEST, VERSIONS[-1]))
_VERSION = re.compile("|".join(map(re.escape, VERSIONS)))

# Here the version is only where something happens. Elsewhere, and in these files, what differs between versions is what
# is tested.
_AT_ENDS = (
    "tests/engine/restore/",
    "tests/exchange/",
    "tests/formats/test_archive_on_servers.py",
    "tests/fuzz/",
    "tests/integration/",
    "tests/putting_back/",
    "tests/trials/",
)
_BY_VERSION = ("tests/integration/test_plan.py", "tests/integration/test_servers.py")

SAMPLED = {
    "tests/integration/test_interrupted.py::test_a_backup_that_is_stopped_anywhere_leaves_a_valid_repository": 3,
    "tests/integration/test_interrupted.py::test_a_restore_that_is_stopped_anywhere_leaves_nothing": 3,
    "tests/look/buckets/test_bucket_truth.py::test_the_backups_around_a_moment_say_more_and_it_is_true": 3,
    "tests/look/buckets/test_bucket_truth.py::test_what_one_backup_says_is_true": 3,
    "tests/pipeline/messages/test_stream_sink.py::test_a_batch_that_is_cut_off_is_completed": 2,
    "tests/pipeline/queries/test_binary_payload_query.py::test_duckdb_answers_as_spark_does": 3,
    "tests/pipeline/queries/test_duckdb_query.py::test_duckdb_answers_as_spark_does": 2,
    "tests/pipeline/tables/test_append.py::test_stopped_at_every_operation": 3,
    "tests/pipeline/tables/test_partitions.py::test_any_messages_come_back": 2,
    "tests/pipeline/tables/test_partitions.py::test_stopped_at_every_operation": 3,
    "tests/pipeline/test_direct.py::test_filtered_tables_are_those_of_spark_and_of_the_rule": 3,
    "tests/pipeline/test_direct.py::test_statistics_are_those_of_spark": 3,
    "tests/pipeline/test_direct.py::test_the_largest_of_many_subjects_are_those_of_spark": 2,
    "tests/repository/keep/test_prune.py::"
    "test_stopped_at_any_operation_it_has_harmed_nothing_and_the_next_one_finishes": 3,
    "tests/repository/test_crash.py::"
    "test_a_copy_stopped_at_any_operation_leaves_whole_backups_and_is_finished_by_a_rerun": 3,
    "tests/repository/test_crash.py::test_stopped_at_any_operation_it_harms_nothing_and_a_rerun_succeeds": 3,
    "tests/repository/test_crash.py::test_what_fails_once_at_any_operation_is_tried_again_and_makes_no_difference": 3,
    "tests/trials/test_killed_replace.py::"
    "test_a_copy_is_backed_up_only_where_it_is_all_that_is_left_and_goes_with_the_next_restore": 3,
}
"""Of these one in so many variants runs as a rule: other seeds and other moments of the same."""

APART = frozenset(
    {
        # Processes are killed again and again, for minutes. One kill of each kind is in test_stream_sink.py.
        "tests/pipeline/messages/test_stream_sink_kills.py::"
        "test_a_driver_that_is_killed_before_and_after_a_batch_is_committed",
        "tests/pipeline/messages/test_stream_sink_kills.py::test_a_driver_that_is_killed_while_rows_are_sent",
        # The tool that measures.
        "tests/test_bench.py::test_a_bill_is_read_off_what_s3_was_asked",
        "tests/test_bench.py::test_a_tree_is_compared_with_another_one_command_by_command",
        "tests/test_bench.py::test_costs_of_commands_on_a_fabricated_repository_are_counted",
        "tests/test_bench.py::test_jobs_on_spark_are_held_against_spark_alone_and_one_core",
        "tests/test_bench.py::test_processor_time_is_told_by_thread",
        "tests/test_bench.py::test_queries_of_many_segments_are_measured",
        # The same, with thousands of what others have few of.
        "tests/integration/test_follow.py::test_an_account_of_many_streams_is_followed_whole",
        "tests/integration/test_many_streams.py::test_follow_keeps_up_with_many_streams",
        "tests/integration/test_obfuscate.py::test_a_consumer_keeps_thousands_of_pending_messages",
        # Another command beside a reader that is lost: others of that file are enough to see one told.
        "tests/pipeline/test_lost_readers.py::test_transform_and_an_import_of_a_table_do_their_work_and_end_with_14",
        "tests/pipeline/session/test_executor_watch.py::test_an_export_ends_without_a_table",
    }
)
"""These run in a thorough run only."""


def waiting(nodeids: Sequence[str]) -> set[str]:
    """Return those of all collected tests that wait for a thorough run.

    Of variants that differ in the version of a server only, those of the oldest and the newest one do not wait, or else
    the last one.
    """
    found, alike, variants = set(), defaultdict(list), defaultdict(list)
    for nodeid in nodeids:
        name, _, variant = nodeid.partition("@")[0].partition("[")
        if name in APART:
            found.add(nodeid)
        elif name.startswith(_AT_ENDS) and not name.startswith(_BY_VERSION) and _VERSION.search(variant):
            alike[name, _VERSION.sub("*", variant)].append(nodeid)
        if name in SAMPLED:
            variants[name].append(nodeid)
    for name, ids in variants.items():
        found.update(nodeid for at, nodeid in enumerate(ids) if at % SAMPLED[name])
    for ids in alike.values():
        found.update(_in_the_middle(ids))
    return found


def _in_the_middle(nodeids: Iterable[str]) -> set[str]:
    ids = list(nodeids)
    middle = {nodeid for nodeid in ids if not _ENDS.issuperset(_VERSION.findall(nodeid))}
    return middle if len(middle) < len(ids) else middle - {ids[-1]}
