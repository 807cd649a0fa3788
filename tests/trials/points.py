"""What trials by strangers found with exit code 0, point by point, and the tests that hold each mended.

Numbers are those of the trial's report. A test is named by its file in this folder or below `tests/`, and its function.
`test_points.py` checks that every one of them exists.
"""

from __future__ import annotations

__all__ = ["POINTS"]

POINTS: dict[int, tuple[str, ...]] = {
    1: (
        "test_latest.py::test_latest_is_of_the_account_that_is_connected_to",
        "test_latest.py::test_of_several_sources_none_is_taken_unless_it_is_chosen",
        "test_latest.py::test_a_lost_cluster_is_restored_into_another_one_with_one_command",
        "test_latest.py::test_a_profile_means_what_it_has_backed_up",
        "test_latest.py::test_by_all_a_profile_means_what_it_says_now",
        "test_latest.py::test_accounts_that_are_jwts_are_kept_apart",
        "test_latest.py::test_servers_that_nobody_has_named_are_told_apart_by_their_streams",
        "test_latest.py::test_accounts_that_nobody_may_learn_are_told_apart_by_who_logs_in",
        "test_worth.py::test_a_list_says_of_what_how_old_how_long_and_how_much",
        "repository/read/test_latest.py::test_whatever_there_is_no_other_source_is_taken_and_nothing_is_missing_unsaid",
    ),
    2: (
        "test_worth.py::test_an_empty_backup_after_a_full_one_is_incomplete_and_stands_for_nothing",
        "test_worth.py::test_what_comes_to_a_server_that_has_lost_its_streams_does_not_stand_for_them",
        "test_worth.py::test_an_account_that_never_had_a_stream_is_backed_up_as_it_is",
        "test_worth.py::test_streams_that_somebody_made_anew_without_messages_are_lost_too",
        "test_worth.py::test_a_stream_that_empties_by_itself_is_not_lost_and_a_purged_one_may_be",
        "test_worth.py::test_a_follow_of_a_server_that_loses_its_streams_ends_incomplete",
        "test_latest.py::test_a_backup_of_one_stream_by_hand_is_not_what_all_means",
        "test_latest.py::test_a_stream_that_is_gone_comes_from_the_newest_backup_that_has_it",
        "test_latest.py::test_a_partial_backup_is_not_the_latest_while_there_is_a_complete_one",
        "test_worth.py::test_a_drill_of_few_streams_does_not_count_as_one_of_all",
        "test_worth.py::test_each_account_has_to_be_drilled_by_itself",
    ),
    3: (
        "test_worth.py::test_a_newer_backup_that_leaves_a_stream_out_covers_nothing_of_it",
        "engine/check/test_health_rules.py::test_a_newer_backup_that_leaves_a_stream_out_does_not_stand_for_it",
    ),
    4: (
        "test_repair.py::test_what_verify_found_damaged_is_stored_again",
        "test_repair.py::test_repair_brings_back_the_right_bytes_from_a_copy_or_the_server",
        "test_repair.py::test_repair_names_what_stays_lost",
    ),
    5: (
        "test_first_backup.py::test_a_first_run_that_fails_leaves_nothing",
        "test_first_backup.py::test_a_copy_that_copies_nothing_makes_no_repository",
        "test_first_backup.py::test_a_replica_is_made_with_its_first_object",
        "test_first_backup.py::test_where_a_disk_is_not_mounted_nothing_is_made",
        "test_first_backup.py::test_that_a_repository_is_made_is_said_with_quiet_too",
    ),
    6: (
        "test_replacing.py::test_one_key_does_not_replace_a_bucket",
        "test_replacing.py::test_a_clone_of_a_part_does_not_replace_more_under_other_names",
        "test_replacing.py::test_a_cut_does_not_replace_what_lies_outside_of_it",
        "test_replacing.py::test_what_is_left_of_a_damaged_backup_does_not_replace_more",
    ),
    7: (
        "test_missed.py::test_a_mask_that_masks_nothing_is_refused_before_anything_is_restored",
        "test_missed.py::test_a_clone_whose_mask_masks_nothing_leaves_nothing_at_the_target",
        "test_missed.py::test_a_selection_that_keeps_nothing_is_refused",
        "test_missed.py::test_a_plan_of_a_long_stream_says_what_a_sample_of_it_shows",
        "pipeline/jobs/test_changed_copy.py::test_a_mask_that_masks_nothing_ends_in_no_backup",
    ),
    8: (
        "test_buckets.py::test_buckets_work_when_every_subject_is_mapped",
        "planning/test_reshaping.py::test_maps_of_everything_leave_buckets_to_their_names",
        "planning/test_reshaping.py::test_maps_written_for_a_bucket_are_its_new_name_or_refused",
    ),
    9: (
        "test_copies.py::restored_then_beside_itself_under_other_names_then_replaced",
        "test_copies.py::restored_by_archives_v2",
        "test_copies.py::restored_with_their_origin_in_memory",
        "test_copies.py::restored_under_other_names_and_subjects",
        "test_copies.py::cloned",
        "test_copies.py::imported_from_a_folder_of_the_nats_cli",
        "test_copies.py::restored_after_their_origin",
        "test_copies.py::restored_before_their_origin",
        "test_copies.py::backed_up_alone_and_restored_beside_their_origin",
        "test_copies.py::test_copies_go_on_where_they_were_in_a_cluster",
    ),
    10: ("test_keys_at_hand.py::test_a_plan_and_a_restore_are_refused_once_where_the_keys_cannot_read",),
    11: (
        "test_consumers.py::test_a_clone_says_of_consumers_what_arrived",
        "test_consumers.py::test_a_restore_says_in_numbers_what_comes_again",
    ),
    12: (
        "test_older_servers.py::test_what_the_target_does_not_know_is_left_out_where_nothing_needs_it",
        "test_older_servers.py::test_a_clone_leaves_out_what_the_target_does_not_know",
        "test_older_servers.py::test_a_runbook_and_a_saved_plan_adapt_too",
    ),
    13: (
        "test_older_servers.py::test_what_an_older_release_was_given_does_not_differ_from_its_backup",
        "test_locations.py::test_a_folder_above_repositories_is_none_and_names_them",
        "test_locations.py::test_a_url_with_one_slash_is_no_folder",
    ),
    14: (
        "test_busy_buckets.py::test_a_backup_misses_no_key_that_is_overwritten_meanwhile",
        "test_busy_buckets.py::test_history_roll_ups_and_hot_keys_are_as_they_were",
        "test_busy_buckets.py::test_follow_has_a_state_that_was",
        "test_busy_buckets.py::test_a_clone_misses_no_key_that_is_overwritten_meanwhile",
        "test_busy_buckets.py::test_more_deleted_sequences_than_can_be_asked_for",
        "test_busy_buckets.py::test_a_user_who_may_not_read_on_is_told_what_is_missing",
        "engine/read/test_catch_up.py::test_what_was_read_is_the_stream_as_it_was_when_the_server_described_it",
    ),
    15: (
        "test_restored_in_place.py::test_a_message_that_was_saved_is_backed_up_and_one_that_was_erased_is_not",
        "test_restored_in_place.py::test_a_bucket_restored_in_place_is_backed_up_as_it_is",
        "test_restored_in_place.py::test_two_servers_of_one_cluster_name_do_not_lend_each_other_messages",
        "test_restored_in_place.py::test_a_disk_that_was_put_back_is_noticed",
        "test_restored_in_place.py::test_follow_notices_that_a_stream_was_restored_in_place",
        "test_restored_in_place.py::test_what_a_restore_altered_is_read_again",
    ),
    16: (
        "test_taken_away.py::test_forget_covers_nothing_up",
        "test_taken_away.py::test_status_is_not_content_while_a_backup_is_missing",
        "test_taken_away.py::test_latest_is_not_an_older_backup_where_a_newer_one_is_missing",
        "test_taken_away.py::test_where_no_manifest_is_left_nothing_is_deleted",
        "test_taken_away.py::test_a_copy_of_some_backups_is_whole",
    ),
    18: (
        "repository/test_replacing_store.py::test_two_backups_at_once_are_both_whole",
        "integration/test_s3.py::test_a_store_with_bad_moments_loses_nothing",
    ),
    19: (
        "repository/crypto/test_keys.py::test_a_replaced_writer_stays_replaced_whatever_is_put_beside",
        "repository/crypto/test_keys.py::test_readers_are_not_kept_out_by_what_is_put_beside_their_keys",
    ),
    20: (
        "test_first_backup.py::test_first_backups_at_once_both_succeed_whatever_the_order",
        "protocol/test_info.py::test_a_message_without_a_time_is_refused",
        "cli/commands/operate/test_schedule.py::test_a_line_feed_in_a_profile_is_refused",
        "cli/commands/operate/test_schedule.py::test_what_could_end_a_line_is_refused_in_every_path",
        "cli/commands/operate/test_schedule.py::test_no_path_makes_lines_of_a_schedule_of_its_own",
        "test_odd_names.py::test_streams_with_blanks_that_servers_take_are_backed_up_and_restored",
        "test_odd_names.py::test_a_permission_for_such_a_name_is_missed_at_once",
    ),
    17: (
        "test_half_made.py::test_a_half_made_stream_that_is_written_to_is_not_removed_unasked",
        "test_half_made.py::test_what_came_since_is_noticed_whatever_the_clocks_say",
        "test_half_made.py::test_a_half_made_stream_is_backed_up_as_incomplete_and_without_its_mark",
        "test_half_made.py::test_a_clone_of_a_half_made_stream_is_incomplete",
        "test_half_made.py::test_without_marks_a_stream_that_somebody_made_meanwhile_stays",
        "test_killed_replace.py::test_a_copy_is_backed_up_only_where_it_is_all_that_is_left_and_goes_with_the_next_restore",
        "test_killed_replace.py::test_a_stream_that_somebody_made_meanwhile_does_not_stand_for_the_copy",
        "test_killed_replace.py::test_what_is_restored_with_less_than_the_copy_has_does_not_remove_it",
        "test_killed_replace.py::test_an_old_backup_of_a_copy_does_not_restore_it",
    ),
    21: (
        "engine/read/test_mirrors.py::test_every_stream_comes_once_and_behind_all_that_it_waits_for",
        "test_copies.py::backed_up_while_publishers_are_at_work",
        "test_copies.py::followed_while_publishers_are_at_work",
        "test_copies.py::cloned_while_publishers_are_at_work",
        "test_copies.py::of_a_later_backup_than_their_origin",
        "test_copies.py::a_mirror_of_another_stream_that_is_shorter_is_refused",
        "test_copies.py::sources_of_another_stream_of_that_name_copy_what_it_has",
    ),
    22: (
        "test_copies.py::a_plan_says_what_they_do_when_their_origin_alone_is_replaced",
        "test_copies.py::restored_before_their_origin_which_comes_into_memory",
    ),
    23: ("test_copies.py::with_messages_gone",),
    24: (
        "test_follow_restarts.py::test_a_stream_that_was_read_and_does_not_answer_any_more_is_named_once",
        "test_follow_restarts.py::test_a_killed_follow_leaves_no_consumers_to_the_next",
    ),
    25: ("test_lost_nodes.py::test_a_server_that_stops_when_streams_are_given_to_it",),
}
