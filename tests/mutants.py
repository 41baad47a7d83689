"""One line at a time broken where money is worked out, each named by what a user would be told wrongly.

Run with ``pytest -m mutants -n 0 tests/test_mutants.py -k money``.
"""

from __future__ import annotations

from mutation import Mutant, Table

MUTANTS = (
    # --- what a job costs -----------------------------------------------------------------------------------
    Mutant(
        name="the slow and cheap card is called the sensible one, because waiting is free",
        file="gpubench/recommend/objective.py",
        old='return -(usd if by == "cost" else usd + waiting_usd(request, job_hours))',
        new="return -usd",
        killer="recommend/test_hour_worth.py::test_rows_are_in_order_of_dollars_and_hours",
    ),
    Mutant(
        name="the chance of the cheapest is that of the sensible answer",
        file="gpubench/recommend/chances.py",
        old='p_cheapest=p_by("cost"),',
        new='p_cheapest=p_by("value"),',
        killer="recommend/test_hour_worth.py::test_the_chances_of_a_row_do_not_hang_on_the_order_that_is_asked_for",
    ),
    Mutant(
        name="a job of a second is free where an hour is billed",
        file="gpubench/recommend/economics.py",
        old="np.maximum(units, hours > 0) * granularity_hours",
        new="units * granularity_hours",
        killer="recommend/test_economics.py::test_billed_hours",
    ),
    Mutant(
        name="a job on the user's own card waits for a rented machine to start",
        file="gpubench/recommend/objective.py",
        old="start = np.where(pool.is_owned[rows], 0.0, ",
        new="start = np.where(pool.is_owned[rows] & False, 0.0, ",
        killer="recommend/test_owning.py::test_a_job_on_an_own_machine_waits_for_nothing_and_pays_no_cloud_for_its_disk",
    ),
    Mutant(
        name="a job on the user's own card pays for a cloud's disk and egress",
        file="gpubench/recommend/objective.py",
        old="np.where(pool.is_owned[rows], 0.0, 1.0)",
        new="np.where(pool.is_owned[rows], 1.0, 1.0)",
        killer="recommend/test_owning.py::test_a_job_on_an_own_machine_waits_for_nothing_and_pays_no_cloud_for_its_disk",
    ),
    Mutant(
        name="one of eight jobs side by side pays for all eight GPUs",
        file="gpubench/recommend/objective.py",
        old="        price = price / _beside(pool.count[rows], billed_hours)",
        new="        price = price / 1",
        killer="recommend/test_objective.py::test_jobs_side_by_side_share_the_price_of_their_machine",
    ),
    Mutant(
        name="a purchase pays off too soon, because tax is on the rent alone",
        file="gpubench/recommend/owning.py",
        old="pair)[1] / (1 + request.tax)",
        new="pair)[1]",
        killer="recommend/test_owning.py::test_what_is_paid_before_the_first_step_counts_in_the_break_even",
    ),
    Mutant(
        name="a card that idles half of the time costs as if it idled less",
        file="gpubench/recommend/economics.py",
        old="idle = idle_w * (1 - utilization) / utilization",
        new="idle = idle_w * (1 - utilization)",
        killer="recommend/test_economics.py::test_idle_power_is_paid_by_the_useful_hours",
    ),
    Mutant(
        name="spot may lose more work than it can before it costs more than on demand",
        file="gpubench/recommend/objective.py",
        old="rate = pool.rate[rows] / pool.delivered[rows]",
        new="rate = pool.rate[rows]",
        killer="recommend/test_objective.py::test_what_spot_may_lose_is_the_same_whatever_it_is_taken_to_lose",
    ),
    Mutant(
        name="a commitment costs most where the machine is used most",
        file="gpubench/recommend/owning.py",
        old="uses = owned.utilization if is_committed else owned.utilization[::-1]",
        new="uses = owned.utilization[::-1]",
        killer="recommend/test_owning.py::test_a_commitment_is_dear_where_it_is_little_used_and_cheap_where_it_is_used_much",
    ),
    Mutant(
        name="the interval of a cost holds half of what an old price may be off by",
        file="gpubench/recommend/objective.py",
        old="    factor = np.exp(pool.prices.half_width[rows])\n    cheap, dear",
        new="    factor = np.exp(pool.prices.half_width[rows] / 2)\n    cheap, dear",
        killer="recommend/test_prices.py::test_the_ends_of_a_cost_hold_what_its_price_has_drifted",
    ),
    Mutant(
        name="an old ask passes a price limit that no host is expected to meet",
        file="gpubench/recommend/filters.py",
        old="prices_of(offers, market).expected > most",
        new="offers.price > most",
        killer="recommend/test_price_model.py::test_budget_and_hourly_limit_hold_of_the_printed_figures",
    ),
    # --- how sure the choice is -----------------------------------------------------------------------------
    Mutant(
        name="a choice at half the value of the best loses 50 %, not 100 %",
        file="gpubench/recommend/chances.py",
        old="np.asarray(best / scores - 1)",
        new="np.asarray(1 - scores / best)",
        killer="recommend/test_ties.py::test_the_regret_of_a_value_is_that_of_the_cost_of_the_same_work",
    ),
    Mutant(
        name="the chances of all offers to be the best add up to more than 100 %",
        file="gpubench/recommend/chances.py",
        old="[(row / self.winners).mean() for row in self.won]",
        new="[row.mean() for row in self.won]",
        killer="recommend/test_ties.py::test_chances_are_counted_over_draws",
    ),
    Mutant(
        name="chances are those of throughputs twice as uncertain as they are",
        file="gpubench/predict/answers.py",
        old="math.log(estimate.high / estimate.low) / 2 / z",
        new="math.log(estimate.high / estimate.low) / z",
        killer="predict/test_draws.py::test_draws_have_the_shape_the_seed_and_the_spread",
    ),
    # --- what is predicted, and how far it may be off -------------------------------------------------------
    Mutant(
        name="an interval from few readings is as narrow as one from many",
        file="tools/fit.py",
        old="share = min(1.0, COVERAGE * (votes + 1) / votes)",
        new="share = COVERAGE",
        killer="tools/test_fit.py::test_a_conformal_factor_of_nine_votes_is_the_largest_and_of_none_is_unknown",
    ),
    Mutant(
        name="the width of an interval is set by whoever published the most rows",
        file="tools/fit.py",
        old="1.0 / (partners * targets)",
        new="1.0 / partners",
        killer="tools/test_fit.py::test_a_harness_has_one_vote_for_each_gpu_however_many_rows_it_has",
    ),
    Mutant(
        name="a prediction from a measurement has twice the uncertainty of that measurement",
        file="gpubench/predict/anchors.py",
        old="noise = math.log(high / low) / 2",
        new="noise = math.log(high / low)",
        killer="predict/test_estimate.py::test_a_reading_of_another_card_errs_by_its_own_interval_and_by_what_cards_differ",
    ),
    Mutant(
        name="what someone else's card measured is as certain for the user's card",
        file="gpubench/predict/anchors.py",
        old="noise = math.hypot(noise, ELSEWHERE)",
        new="noise = math.hypot(noise, 0.0)",
        killer="predict/test_estimate.py::test_a_reading_of_another_card_errs_by_its_own_interval_and_by_what_cards_differ",
    ),
    Mutant(
        name="a prediction from the user's own card is pulled toward someone else's readings",
        file="gpubench/predict/anchors.py",
        old='usable = [r for r in usable if r.basis == "measured"] or usable',
        new="usable = list(usable)",
        killer="predict/test_estimate.py::test_what_the_user_measured_stands_alone",
    ),
    # --- what is offered, and at what price -----------------------------------------------------------------
    Mutant(
        name="the only spot price of a GPU is left out as a mistake",
        file="gpubench/offers/outliers.py",
        old="is_low = ratio * MAX_RATIO * LOOSENING**standard.loosened < 1",
        new="is_low = ratio * MAX_RATIO < 1",
        killer="offers/test_outliers.py::test_with_no_standard_of_its_own_kind_a_price_is_held_to_the_others_twice_as_loosely",
    ),
    Mutant(
        name="a price that fell to a tenth overnight is believed",
        file="gpubench/offers/outliers.py",
        old="if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:",
        new="if not ratio <= MAX_RATIO:",
        killer="offers/test_price_refresh.py::test_a_jump_against_the_own_last_price_is_set_aside_and_the_old_price_stays",
    ),
    Mutant(
        name="a price that doubled in four years drifts as if it had doubled in one",
        file="gpubench/offers/dates.py",
        old="change.log_ratio**2 / change.years",
        new="change.log_ratio**2",
        killer="offers/test_moves.py::test_the_tables_own_history_counts_by_its_changes",
    ),
    Mutant(
        name="an old ask is expected to rise to the price of a whole machine per GPU",
        file="gpubench/offers/dates.py",
        old="logs.append(math.log(float(middle_usd) / offer.gpu_count))",
        new="logs.append(math.log(float(middle_usd)))",
        killer="offers/test_moves.py::test_the_number_and_median_that_a_source_gives_count",
    ),
    Mutant(
        name="a price dated to a month is up to four weeks fresher than it may be",
        file="gpubench/offers/dates.py",
        old="int(month or 1), int(day or 1)",
        new="int(month or 1), int(day or 28)",
        killer="offers/test_price_dates.py::test_a_partial_date_counts_as_its_oldest_day",
    ),
    Mutant(
        name="an offer that is no longer sold is still ranked",
        file="gpubench/offers/table.py",
        old="*map(below.pop, gone)",
        new="*map(below.get, gone)",
        killer="offers/test_price_refresh.py::test_a_complete_answer_retires_shipped_prices_of_its_provider_and_no_others",
    ),
    # --- two runs, and whether one is sound -----------------------------------------------------------------
    Mutant(
        name="two runs are alike within 1 % where one may be 10 % slower",
        file="gpubench/interval.py",
        old="max(1 - low, high - 1)",
        new="min(1 - low, high - 1)",
        killer="record/test_run_check.py::test_a_difference_is_said_only_where_the_interval_excludes_that_there_is_none",
    ),
    Mutant(
        name="a run that may be slower by more than the tolerance is not slower",
        file="gpubench/record/compare.py",
        old="return not surely_within and not self.slower_than(tolerance)",
        new="return False",
        killer="record/test_run_check.py::test_a_row_that_may_be_slower_by_more_than_the_tolerance_is_undecided",
    ),
    Mutant(
        name="a run that became slower is faster",
        file="gpubench/record/compare.py",
        old="ratio=ratio(b, a)",
        new="ratio=ratio(a, b)",
        killer="record/test_run_check.py::test_a_regression_fails_only_beyond_its_interval",
    ),
    Mutant(
        name="a sound run of two GPUs breaks the power limit of one and is refused",
        file="gpubench/record/rules.py",
        old="launch.energy_region_s / gpu_count",
        new="launch.energy_region_s",
        killer="record/test_store.py::test_more_energy_than_the_power_limit_allows_is_refused",
    ),
    Mutant(
        name="a bf16 run on a CPU was checked against float32 when it was not",
        file="gpubench/record/run_check.py",
        old="own_reference = device.is_cpu and case.precision is Precision.FP32",
        new="own_reference = device.is_cpu",
        killer="record/test_run_check.py::test_guards_are_due_where_the_case_and_the_device_have_them",
    ),
    # --- what is printed ------------------------------------------------------------------------------------
    Mutant(
        name="AMP is slower beyond the interval where the interval holds a gain",
        file="gpubench/sections/amp.py",
        old="s.interval.high is not None and s.interval.high < 1",
        new="s.interval.value is not None and s.interval.value < 1",
        killer="report/test_deeper_sections.py::test_amp_loses_only_where_the_whole_interval_does",
    ),
    Mutant(
        name="AMP takes the peak memory that full precision takes",
        file="gpubench/sections/amp.py",
        old="{format_bytes(amp)} for {format_bytes(baseline)}",
        new="{format_bytes(baseline)} for {format_bytes(amp)}",
        killer="report/test_deeper_sections.py::test_amp_states_its_own_peak_before_that_of_the_baseline",
    ),
    Mutant(
        name="a CPU is too slow where its interval leaves that open",
        file="gpubench/sections/processor.py",
        old="hard = [c for c in trained if _at_least_s(c.cpus) > SMALL_JOB_S and c not in far]",
        new="hard = [c for c in trained if _surely_within_s(c.cpus) > SMALL_JOB_S and c not in far]",
        killer="report/test_deeper_sections.py::test_what_the_interval_leaves_open_is_not_told",
    ),
    Mutant(
        name="a million samples cost as many dollars as a dollar buys samples",
        file="gpubench/sections/words.py",
        old="    return row.usd_per_million_samples",
        new="    return row.samples_per_usd.value",
        killer="report/test_sections.py::test_the_cheapest_work_costs_what_its_price_and_throughput_say",
    ),
    Mutant(
        name="the page for mailing holds up to twice the samples that it may",
        file="gpubench/report/export.py",
        old="step = max(1, -(-total // most_samples))",
        new="step = max(1, total // most_samples)",
        killer="report/test_export.py::test_the_page_carries_the_runs_it_uses_and_thins_long_telemetry",
    ),
    Mutant(
        name="the listed price in the CSV is the expected one",
        file="gpubench/report/export.py",
        old='"price_usd_per_hour": row.offer.price_usd_per_hour',
        new='"price_usd_per_hour": row.usd_per_hour.value',
        killer="report/test_export.py::test_the_listed_price_and_the_expected_one_have_a_column_each",
    ),
    # --- what fits ------------------------------------------------------------------------------------------
    Mutant(
        name="the largest batch that fits is below one that was measured to fit",
        file="gpubench/profile/memory.py",
        old="    largest = max(largest, batch) if verdict is Verdict.FITS else min(largest, batch - 1)\n",
        new="",
        killer="workloads/test_memory.py::test_the_largest_batch_holds_what_was_measured_of_this_one",
    ),
    Mutant(
        name="a batch fits that the driver leaves no room for",
        file="gpubench/profile/memory.py",
        old="spare = card.usable_bytes - high",
        new="spare = card.listed_bytes - high",
        killer="workloads/test_memory.py::test_the_largest_batch_is_the_largest_that_fits",
    ),
    Mutant(
        name="a step fits a card because it ran on a larger one",
        file="gpubench/profile/allowance.py",
        old="other.memory_bytes <= spec.memory_bytes",
        new="other.memory_bytes >= spec.memory_bytes",
        killer="tools/test_memory_fit.py::test_a_step_that_ran_speaks_for_its_line_of_cards_with_no_less_memory_alone",
    ),
    Mutant(
        name="a step that keeps gradients saves them once more for its backward pass",
        file="gpubench/profile/liveness.py",
        old="saved = storages.bytes - storages.gradient_bytes - weights - states",
        new="saved = storages.bytes - weights - states",
        killer="workloads/test_memory.py::test_gradients_that_are_kept_are_not_among_what_a_forward_pass_saves",
    ),
    Mutant(
        name="several GPUs need less memory than the highest moment of their step",
        file="gpubench/profile/growth.py",
        old="(1 - share) * line.gradient_bytes",
        new="share * line.gradient_bytes",
        killer="workloads/test_memory.py::test_the_peak_with_any_share_of_the_gradients_is_that_of_the_highest_moment",
    ),
)

TABLE = Table(mutants=MUTANTS, folder="tests", least_killed=38)
