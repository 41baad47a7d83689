"""What can go wrong on a user's machine, what gpubench then does, and the tests that prove it.

``python tests/faults.py`` writes docs/reliability.md from this table. ``test_faults.py`` fails if a test named
here is missing or the page differs from the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gpubench.errors import ExitCode

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"


class Fault(NamedTuple):
    """One fault: what happens, the exit code, and ``file::test`` for each test, without ``test_``.

    ``exit_code`` lists the codes that a command may end with. A test asserts each code except 0.
    """

    name: str
    answer: str
    exit_code: str
    tests: tuple[str, ...]


def fault(name: str, answer: str, exit_code: str, *tests: str) -> Fault:
    return Fault(name, answer, exit_code, tests)


FAULTS = (
    fault("No NVML library", "`--device auto` takes the CPU and says so; `--device cuda` says what to install", "0; 3",
          "probe/broken_driver::a_missing_and_a_broken_driver_are_distinguished_by_the_loaders_message", "cli/bad_input::without_a_driver_the_loaders_error_is_shown_and_exit_is_3"),
    fault("A library that is unreadable, truncated or of another architecture", "The loader's message and the path are shown", "3",
          "probe/broken_driver::a_truncated_library_shows_the_loaders_message_and_the_path"),
    fault("CUDA's stub library is found first", "Its path is named", "3",
          "probe/broken_driver::a_stub_library_is_named_with_its_path"),
    fault("The driver is not loaded", "The advice is to load the module or reboot", "3", "probe/broken_driver::a_driver_that_does_not_start_is_one_line_and_exit_3"),
    fault("Driver and library differ after an upgrade", "Both versions are named", "3",
          "probe/broken_driver::both_versions_are_named_after_an_upgrade", "probe/broken_driver::a_driver_that_does_not_start_is_one_line_and_exit_3"),
    fault("NVML's \"Unknown Error\" in a container", "The control group is named: recreate the container", "3",
          "probe/broken_driver::an_unknown_error_in_a_container_names_the_cgroup",
          "probe/broken_driver::a_driver_that_does_not_start_is_one_line_and_exit_3"),
    fault("No permission", "The node or call is named; the rest continues", "0; 3",
          "probe/broken_driver::a_driver_that_does_not_start_is_one_line_and_exit_3", "probe/nvidia_probe::a_refused_field_is_none_with_its_reason"),
    fault("No GPU, or a GPU with a CPU build of torch", "The message says which of the two", "3",
          "probe/broken_driver::no_gpu_and_a_cpu_only_torch_are_distinguished",
          "cli/bad_input::cpu_only_torch_never_falls_back_silently_when_a_gpu_is_present"),
    fault("A torch for a newer CUDA than the driver", "Both versions and the right torch are named", "3",
          "probe/broken_driver::a_torch_for_a_newer_cuda_than_the_driver_names_both_versions"),
    fault("One reading is refused", "It is null with a reason; the run continues", "0",
          "probe/nvidia_probe::a_refused_field_is_none_with_its_reason", "probe/readings::a_refused_reading_is_none_with_its_reason"),
    fault("Every reading is refused", "Only times are measured", "0",
          "probe/readings::a_driver_that_refuses_everything_gives_no_telemetry",
          "probe/nvidia_probe::when_everything_is_refused_the_device_is_still_listed"),
    fault("A function that an old driver lacks", "The older one is tried; if that fails, null", "0",
          "probe/nvidia_probe::an_old_driver_is_asked_through_the_older_function_name", "probe/nvidia_probe::a_missing_function_affects_only_its_field"),
    fault("Unified memory", "The machine's memory is reported and marked", "0", "probe/machines::unified_memory_is_the_machines_and_marked"),
    fault("A device name that is not UTF-8", "Decoded with replacement", "0",
          "probe/nvidia_probe::a_name_that_is_not_utf8_is_read_with_replacement"),
    fault("MIG is on", "The slice is measured; figures of the whole card are hidden", "0",
          "probe/machines::mig_slices_are_listed_as_devices_without_card_level_readings"),
    fault("CUDA_VISIBLE_DEVICES in any form", "Mapped by UUID; a mismatch is an error", "2; 3",
          "probe/select::the_visible_devices_are_selected_in_their_order", "probe/select::invalid_visible_devices_entry_is_an_error",
          "probe/select::an_empty_list_hides_every_gpu", "probe/select::fastest_first_device_order_is_not_guessed"),
    fault("CUDA and NVML disagree on the device, or its UUID is all zeros", "The run stops; the device is matched by bus id, with a note", "3; 0",
          "probe/identity::another_device_stops_the_run", "probe/identity::an_all_zero_uuid_is_joined_by_bus_id_and_reported"),
    fault("One GPU of several is lost", "The others continue", "0 or 4", "probe/nvidia_probe::one_lost_gpu_leaves_the_others",
          "measure/gpu_lost::when_the_only_case_is_lost_every_case_has_failed"),
    fault("The GPU is lost during a run", "Finished launches and the rounds so far are kept; `--resume` measures again", "0 or 4",
          "measure/gpu_lost::the_current_case_keeps_its_rounds_and_no_other_is_tried",
          "measure/gpu_lost::a_run_that_loses_its_gpu_ends_cleanly_and_keeps_finished_cases",
          "measure/gpu_lost::when_the_only_case_is_lost_every_case_has_failed",
          "measure/launcher::a_case_that_ends_on_a_lost_device_says_so_and_keeps_its_rounds"),
    fault("A reset is required, or an ECC counter moves during the run", "The GPU is named; the row is invalid", "0 or 4; 3",
          "probe/readings::a_gpu_that_needs_a_reset_says_so",
          "probe/broken_driver::a_driver_that_does_not_start_is_one_line_and_exit_3",
          "measure/checks::memory_errors_during_the_run_make_it_invalid_and_a_still_counter_does_not",
          "workloads/own_model_verbs::a_loss_that_becomes_nan_is_invalid_and_gives_exit_4"),
    fault("A driver call hangs", "That source is dropped after its limit", "0; 3",
          "probe/nvidia_probe::gpus_before_a_hanging_one_are_listed_and_later_ones_are_skipped",
          "probe/readings::a_call_that_hangs_drops_the_source_and_the_run_continues", "probe/nvidia_probe::an_init_that_hangs_is_exit_3"),
    fault("A step hangs", "Its process ends at the time limit of its phase, as `timeout`", "0 or 4",
          "measure/launcher::a_hang_is_ended_and_named_by_its_phase"),
    fault("A process that cannot be killed", "It is named, and its device is no longer used", "0 or 4",
          "children::a_process_that_cannot_be_killed_is_named_and_not_awaited",
          "workloads/own_model_verbs::a_process_that_ends_while_measuring_leaves_a_log"),
    fault("The system kills the process for memory", "The limit of the container is named; `--resume` measures again", "0 or 4",
          "measure/launcher::a_crash_loses_only_the_current_case",
          "record/resume::a_death_keeps_the_sound_launches_of_its_case_and_is_measured_again"),
    fault("The process crashes", "Signal, phase and last output are stored; the other cases continue", "0 or 4",
          "measure/launcher::a_crash_loses_only_the_current_case", "measure/launcher::rounds_before_a_crash_are_kept"),
    fault("The GPU's memory runs out", "`out_of_memory` with the batch and the phase; a micro-benchmark gets smaller",
          "0 or 4", "measure/launcher::a_crash_loses_only_the_current_case",
          "strict_cuda/failures::running_out_of_memory_names_the_phase",
          "strict_cuda/micro::a_product_too_large_for_the_device_is_measured_at_half_its_size_and_says_so"),
    fault("Others use the GPU", "Refused with their PIDs, unless allowed", "3",
          "probe/preflight::a_foreign_process_is_refused_with_its_pid", "probe/preflight::a_busy_gpu_without_a_process_list_is_refused"),
    fault("An exclusive compute mode", "The mode is named", "3", "probe/preflight::compute_modes_that_prevent_a_run_are_refused"),
    fault("Ctrl-C, once and twice", "The round is finished and the run saved; everything is killed", "130",
          "record/session::ctrl_c_once_finishes_the_round_saves_and_leaves_no_orphan",
          "cli/interrupt::ctrl_c_twice_kills_a_child_that_hangs_and_keeps_the_file",
          "cli/interrupt::an_interruption_in_the_middle_of_a_verb_is_reported"),
    fault("The command is killed", "Its processes end with it, daemons too, except on Linux a process that cleared its environment (`env -i setsid`)", "-",
          "children::a_traced_model_ends_with_a_killed_command_at_any_moment",
          "children::a_measured_model_and_its_children_end_with_the_command",
          "children::a_daemon_ends_with_a_killed_parent_too"),
    fault("SIGTERM", "The run is saved within three seconds; `--resume` continues", "130",
          "record/session::sigterm_saves_within_three_seconds_and_resume_continues",
          "record/session::sigterm_is_obeyed_while_the_model_hangs", "cli/sigterm::a_run_that_is_terminated_is_stored_as_interrupted",
          "cli/sigterm::a_model_that_hangs_on_import_does_not_block_the_command",
          "cli/sigterm::a_server_that_never_answers_does_not_keep_a_command_alive", "stress::a_signal_at_any_moment_ends_a_command_in_order"),
    fault("The disk is full", "The old file stays intact; the run is printed", "5",
          "record/session::storage_failure_prints_the_run_and_exits_with_5", "cli/streams::output_to_a_full_disk_is_one_line",
          "cli/streams::a_log_on_a_full_disk_changes_no_exit_code",
          "record/store::a_file_limit_in_the_middle_of_writing_leaves_the_old_file_intact",
          "system_calls::no_failing_call_loses_a_finished_launch_or_renames_a_healthy_file"),
    fault("The folder is read-only or missing", "The run ends before it spends time", "5",
          "record/store::a_folder_that_cannot_be_made_is_found_before_the_run"),
    fault("Power is cut, or the process killed, while it writes", "Either the old or the new file is intact", "-",
          "record/store::a_kill_at_any_step_of_writing_leaves_the_old_file_intact",
          "record/two_writers::a_killed_writer_has_stored_every_reported_launch",
          "record/two_writers::a_killed_writer_blocks_no_process_and_its_finished_case_stays"),
    fault("A truncated or broken result file", "Set aside under an unused name and counted; the others are read", "0; 2",
          "record/store::a_file_cut_at_any_byte_is_set_aside_and_the_others_are_read",
          "record/store::a_second_broken_file_of_one_name_replaces_no_earlier_one",
          "record/store::a_healthy_run_that_cannot_be_read_now_stays_and_is_named"),
    fault("Several writers at once", "Each run has its own file and lock", "0",
          "stress::processes_that_write_one_store_at_once_lose_nothing",
          "record/two_writers::resume_keeps_rows_added_by_another_process_and_measures_the_rest"),
    fault("Another writes this run; a stale lock; a file system without locks",
          "Refused; taken over from a dead writer; the lock file decides, and the message names it", "0; 5",
          "record/lock::a_second_process_is_refused_in_one_line_while_the_first_holds_the_run",
          "record/lock::a_killed_lock_holder_blocks_no_other_process", "record/lock::only_one_process_at_a_time_holds_the_lock",
          "record/lock::without_locks_the_file_of_a_killed_holder_is_deleted_by_hand",
          "record/two_writers::a_second_writer_ends_with_exit_5_and_the_first_keeps_every_case"),
    fault("An older or a newer schema", "Read as the current one; refused with the advice to upgrade", "0; 2",
          "record/schema::a_run_of_the_first_schema_reads_with_the_defaults_and_is_written_as_the_current_one",
          "record/store::a_later_schema_says_to_upgrade_and_is_not_set_aside"),
    fault("NaN, infinity, huge integers, deep nesting", "Refused", "2",
          "record/store::an_invalid_row_with_nan_is_stored_and_read_back_as_unknown", "record/store::deep_nesting_is_refused",
          "stress::no_reader_breaks_on_any_file_content"),
    fault("A huge file, a zip bomb, a million rows, a pipe, a device", "Refused by kind and size before it is read", "2",
          "record/store::a_huge_sparse_file_is_refused_without_reading_it", "offers/price_sources::a_zip_bomb_is_refused_before_it_is_unpacked",
          "offers/own_tables::too_many_rows_are_refused", "hostile_files::every_reader_refuses_special_files",
          "record/store::results_path_that_is_not_a_folder_is_an_error",
          "offers/price_snapshots::results_path_that_is_not_a_folder_is_refused_even_for_prices"),
    fault("A path in a run id or GPU name, a planted link", "Only listed characters are allowed; links are not followed", "2",
          "record/store::safe_names_cannot_escape_the_results_folder", "record/store::a_run_id_that_is_not_a_file_name_is_refused",
          "record/store::a_symbolic_link_is_not_followed_nor_renamed", "record/store::a_run_is_not_written_through_a_link"),
    fault("Markup in a name", "Escaped; the page allows no network", "0",
          "report/page::only_our_own_elements_are_on_the_page", "report/page::the_policy_allows_no_network"),
    fault("Terminal escapes in a name, even of a file", "Stripped when printed", "0",
          "probe/probe_command::a_hostile_name_cannot_write_to_the_terminal",
          "hostile_files::an_escape_in_a_file_name_does_not_reach_the_terminal",
          "hostile_files::the_path_of_a_page_is_exact_in_json_and_harmless_on_a_terminal",
          "cli/startup::an_error_that_quotes_a_file_name_sends_no_escape_to_the_terminal"),
    fault("A formula in a table that a spreadsheet opens", "A leading quote disarms it", "0",
          "report/export::no_text_cell_is_ever_a_formula", "report/export::negative_numbers_are_not_formulas"),
    fault("Pickle and other formats that run code", "Never read", "2", "faults::nothing_is_executed_from_data",
          "faults::a_pickle_is_refused_wherever_a_file_is_asked_for"),
    fault("A price source that is down, slow, altered or old", "Earlier prices stay with their dates", "0",
          "offers/price_transport::a_lasting_failure_ends_after_three_retries", "offers/price_transport::an_endless_body_is_stopped_by_size",
          "offers/price_transport::a_slowly_dripping_answer_is_stopped_by_time",
          "offers/price_refresh::a_source_that_fails_keeps_its_old_prices_with_their_old_dates_and_the_others_continue",
          "offers/price_refresh::a_snapshot_that_cannot_be_read_is_named_by_the_refresh_that_carries_over_an_older_one",
          "offers/offers_command::the_table_marks_old_prices_and_says_what_was_set_aside"),
    fault("A price of zero, none, or in another currency", "Not ranked, with the reason", "0",
          "offers/own_tables::another_currency_counts_with_its_rate_and_the_day_of_the_rate",
          "offers/price_refresh::an_offer_with_an_unusable_price_keeps_its_old_one"),
    fault("The clock is set, or the machine sleeps", "Durations use the monotonic clock; a gap is marked", "0",
          "measure/checks::a_round_twice_as_long_as_the_others_is_a_gap_in_the_clock"),
    fault("The clock of the model's process is slow", "The parent times the rounds too and finds the row invalid", "0 or 4",
          "measure/launcher::clock_slowed_down_by_a_model_yields_no_figure"),
    fault("The energy counter resets or stays at zero", "Energy is unknown, with the reason", "0",
          "probe/readings::an_energy_counter_at_zero_gives_no_information", "measure/telemetry::unknown_energy_is_never_zero"),
    fault("The loss is not finite or does not fall; AMP skips its steps", "The row is invalid and keeps its loss", "0 or 4",
          "measure/checks::a_loss_that_is_not_a_number_makes_the_row_invalid",
          "measure/checks::a_loss_that_does_not_fall_makes_training_invalid_and_not_inference",
          "measure/step::skipped_steps_are_counted_from_the_gradient_scale",
          "workloads/own_model_verbs::a_loss_that_becomes_nan_is_invalid_and_gives_exit_4"),
    fault("TF32 is forced on under fp32", "Refused; the variable is named", "2",
          "measure/plan::fp32_is_refused_while_a_variable_forces_tf32_and_named"),
    fault("The device throttles", "Flagged, and not ranked unless allowed", "0",
          "measure/checks::clock_event_reasons_are_judged_by_their_share",
          "measure/checks::a_throttled_row_may_be_ranked_on_request_and_stays_so_when_judged_again"),
    fault("torch or plotly is missing", "Only verbs that need it fail, and name it; the page contains plotly's script", "0; 2; 3",
          "cli/without_torch::commands_that_need_torch_print_how_to_install_it",
          "cli/without_torch::comparison_verbs_work_without_torch",
          "faults::the_page_needs_no_plotly_and_a_plot_names_it"),
    fault("No terminal, a narrow one, NO_COLOR, a locale that is not UTF-8", "The output is plain, without control codes", "0",
          "cli/streams::output_works_in_every_encoding", "cli/streams::a_reader_that_leaves_early_causes_no_traceback"),
)  # fmt: skip

HEAD = f"""# Reliability: what can go wrong, and what gpubench then does

Finished work is never lost. A run is one file, replaced atomically and synced to disk after each finished launch. Only one process at a
time writes a run. A file is set aside only if its content is proven bad, under a name that overwrites nothing.

Every file is read through one gate (`gpubench/files.py`): a regular file of bounded size, decoded into a type and never executed. Every
child process is started through another (`gpubench/children.py`): it and its children end with the command (fault 30 names the exception).
Your own model is code that you trust. It cannot fake a result by accident, only by deliberately writing into its pipes.

An unexpected error prints one line, writes a log with the traceback and ends with exit code {ExitCode.INTERNAL.value}. Each entry ends
with its [exit codes](questions.md); `tests/faults.py` names the tests.

"""


def page() -> str:
    """Return docs/reliability.md."""
    rows = (f"{n}. **{f.name}**: {f.answer} ({f.exit_code})" for n, f in enumerate(FAULTS, start=1))
    return HEAD + "\n".join(rows) + "\n" + TAIL


TAIL = """
`pytest -m stress` kills, collides, fuzzes and injects failing system calls by the hundred (`tests/stress/README.md`).
"""

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
