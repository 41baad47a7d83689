"""One line of the CUDA path broken at a time: what the tests on the strict fake must notice.

``old`` stands once in its file; ``new`` takes its place in a copy of the package. ``killer`` is the test that is
run first, because it is the likeliest to fail; if it does not, all the others are run. Run with
``pytest -m mutants -n 0 tests/strict_cuda/test_mutants.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One broken line.

    Attributes:
        name: What is broken.
        file: Of the package.
        misleads: What a user would be told wrongly.
        killer: File and name of the test that should fail.
        survives: Why no test can fail, where none does.
    """

    name: str
    file: str
    old: str
    new: str
    misleads: str
    killer: str
    survives: str = ""


MEASURE = "gpubench/measure/"
CASE, STEP, LOOP, GUARDS = (f"{MEASURE}{name}.py" for name in ("case", "step", "loop", "guards"))
HARDWARE, EXECUTION, BUSY = (f"{MEASURE}{n}.py" for n in ("hardware", "execution", "busy"))
LAUNCH = f"{MEASURE}launch.py"
MICRO, PROBES, TEAM, WORKER = (f"{MEASURE}{name}.py" for name in ("micro", "probes", "team", "worker"))
PRECISION = f"{MEASURE}precision.py"
READINGS = "gpubench/probe/nvml_readings.py"

MUTANTS = (
    # --- the clock and the rounds --------------------------------------------------------------------------
    Mutant(
        name="the clock never waits for the GPU",
        file=HARDWARE,
        old="return Clock(synchronize=synchronize)",
        new="return Clock()",
        misleads="the time to issue a step is sold as the time of the step, several times too fast",
        killer="test_capture.py::test_the_clock_waits_for_the_device_at_both_edges",
    ),
    Mutant(
        name="the clock stops before the GPU is done",
        file=LOOP,
        old="        work()\n        self.synchronize()\n",
        new="        work()\n",
        misleads="the end of each round is not in its time",
        killer="test_capture.py::test_the_clock_waits_for_the_device_at_both_edges",
    ),
    Mutant(
        name="the clock starts while earlier work is underway",
        file=LOOP,
        old="        self.synchronize()\n        start = self.now_ns()\n",
        new="        start = self.now_ns()\n",
        misleads="work of before counts as work of the round",
        killer="test_capture.py::test_the_clock_waits_for_the_device_at_both_edges",
    ),
    Mutant(
        name="the loss is read after every step of a round",
        file=LOOP,
        old="            result = self.advance(self.index)\n",
        new="            result = self.advance(self.index)\n            self.edge_loss(result, self.index)\n",
        misleads="the host never runs ahead: short steps look slower than they train",
        killer="test_steps.py::test_a_round_waits_for_the_device_at_its_edges_alone",
    ),
    # --- the step ------------------------------------------------------------------------------------------
    Mutant(
        name="each step waits for the GPU",
        file=STEP,
        old="    return loss.detach()",
        new="    loss.item()\n    return loss.detach()",
        misleads="the host never runs ahead, and no step can be captured",
        killer="test_capture.py::test_no_step_of_a_round_waits_for_the_device",
    ),
    Mutant(
        name="the optimizer is not fused",
        file=STEP,
        old='options: dict[str, bool] = {"fused": True}',
        new="options: dict[str, bool] = {}",
        misleads="the gradient scaler waits for the GPU in each step of amp-fp16",
        killer="test_capture.py::test_no_step_of_a_round_waits_for_the_device",
    ),
    Mutant(
        name="the optimizer of a graph is not capturable",
        file=STEP,
        old='        options["capturable"] = True',
        new="        pass",
        misleads="graph rows of Adam are refused",
        killer="test_capture.py::test_a_replay_trains_as_eager_steps_do",
    ),
    Mutant(
        name="the gradient scale is never updated",
        file=STEP,
        old="        work.scaler.update()\n",
        new="",
        misleads="amp-fp16 is measured without a part of its step",
        killer="test_capture.py::test_no_step_of_a_round_waits_for_the_device",
    ),
    Mutant(
        name="inference keeps what backward would need",
        file=STEP,
        old="    with torch.inference_mode(), work.autocast():\n        outputs",
        new="    with work.autocast():\n        outputs",
        misleads="inference needs the memory of training, and seems not to fit",
        killer="test_steps.py::test_an_inference_keeps_nothing_for_a_backward_pass",
    ),
    Mutant(
        name="images are not channels_last",
        file=STEP,
        old="            return moved.contiguous(memory_format=torch.channels_last)\n",
        new="            return moved\n",
        misleads="each step turns its images round, and the row says that they lay so",
        killer="test_steps.py::test_images_are_channels_last_in_every_step_where_the_case_says_so",
    ),
    # --- capture and replay --------------------------------------------------------------------------------
    Mutant(
        name="no side stream before a capture",
        file=EXECUTION,
        old="    with torch.cuda.stream(side):\n",
        new="    with torch.cuda.stream(torch.cuda.current_stream()):\n",
        misleads="library handles and gradients are made inside the capture: it fails or reads freed memory",
        killer="test_capture.py::test_the_warm_up_of_a_capture_is_waited_for_and_leaves_no_race",
    ),
    Mutant(
        name="the side stream does not wait for what made the model",
        file=EXECUTION,
        old="    side.wait_stream(torch.cuda.current_stream())\n",
        new="",
        misleads="the first steps may read weights that are still being written",
        killer="test_capture.py::test_the_warm_up_of_a_capture_is_waited_for_and_leaves_no_race",
    ),
    Mutant(
        name="the graphs of a step share no memory",
        file=EXECUTION,
        old="            pool = graph.pool()\n",
        new="",
        misleads="graph rows need several times their memory, or run out of it",
        killer="test_capture.py::test_the_graphs_of_one_step_share_their_memory",
    ),
    Mutant(
        name="one graph is replayed for every batch",
        file=EXECUTION,
        old="graphs[index % len(graphs)]",
        new="graphs[0]",
        misleads="a graph row trains on one batch, which it learns by heart",
        killer="test_capture.py::test_each_batch_has_its_graph_and_they_are_replayed_in_turn",
    ),
    Mutant(
        name="eager steps are run under the name of a graph",
        file=EXECUTION,
        old="    return replay\n",
        new="    return work.step\n",
        misleads="the gain of graphs is never seen",
        killer="test_steps.py::test_a_graph_takes_the_work_off_the_host",
    ),
    Mutant(
        name="eager steps are run under the name of compile",
        file=EXECUTION,
        old='    if not counters["stats"]["unique_graphs"]:\n',
        new="    if False:\n",
        misleads="a row says compile where nothing was compiled",
        killer="test_every_case.py::test_a_case_is_measured_whole[lstm-fp32]",
    ),
    Mutant(
        name="the end of a capture hides what ended it",
        file=EXECUTION,
        old="            cause = cause.__context__\n",
        new="            break\n",
        misleads='a refused model is told of "a previous error" and not of its .item()',
        killer="test_failures.py::test_a_step_that_waits_for_the_device_is_unsupported_with_its_cause",
    ),
    Mutant(
        name="want of memory inside a capture is a refusal",
        file=EXECUTION,
        old="        if lacks_memory(cause):\n",
        new="        if False:\n",
        misleads="a batch that is too large is reported as a model that no graph can take",
        killer="test_failures.py::test_want_of_memory_inside_a_capture_is_no_refusal",
    ),
    Mutant(
        name="a full device is not noticed where a capture ends without a word",
        file=EXECUTION,
        old="    free, total = torch.cuda.mem_get_info()\n",
        new="    free = total = torch.cuda.mem_get_info()[1]\n",
        misleads="as above, where the allocator frees memory inside the capture",
        killer="test_failures.py::test_a_capture_that_ends_without_a_word_on_a_full_device_ended_for_want_of_memory",
    ),
    Mutant(
        name="a capture does not tell what ended it",
        file=EXECUTION,
        old="    with _capturing():\n",
        new="    if True:\n",
        misleads="a generation that is too large is reported as a model that failed, and a search loses its case",
        killer="test_failures.py::test_a_capture_of_a_generation_that_ends_on_a_full_device_ended_for_want_of_memory",
    ),
    # --- generation ----------------------------------------------------------------------------------------
    Mutant(
        name="the host does not wait for the first token",
        file=STEP,
        old="    (start or turn.start)(index)\n    turn.ids.tolist()\n",
        new="    (start or turn.start)(index)\n",
        misleads="the time to issue a prompt is sold as the time to the first token",
        killer="test_generation.py::test_each_token_is_on_the_host_before_the_next_is_begun",
    ),
    Mutant(
        name="the host does not wait for the tokens after the first",
        file=STEP,
        old="        (go_on or turn.go_on)()\n        turn.ids.tolist()\n",
        new="        (go_on or turn.go_on)()\n",
        misleads="tokens seem to come as fast as they are issued",
        killer="test_generation.py::test_each_token_is_on_the_host_before_the_next_is_begun",
    ),
    Mutant(
        name="each token takes the place of the one before in the cache",
        file=STEP,
        old="        self.place.add_(1)\n",
        new="",
        misleads="tokens are generated that do not know their sequence",
        killer="test_generation.py::test_a_generation_gives_the_scores_of_the_whole_sequence",
    ),
    Mutant(
        name="tokens of a graph go where the next replay does not look",
        file=STEP,
        old="        self.ids.copy_(scores.argmax(-1))\n",
        new="        self.ids = scores.argmax(-1)\n",
        misleads="a graph goes on with another batch's tokens",
        killer="test_generation.py::test_replays_generate_what_eager_steps_do_batch_by_batch",
    ),
    Mutant(
        name="the prompts of one batch are replayed for every batch",
        file=EXECUTION,
        old="prompts[n % len(prompts)].replay()",
        new="prompts[0].replay()",
        misleads="graph rows answer the same prompts again and again",
        killer="test_generation.py::test_replays_generate_what_eager_steps_do_batch_by_batch",
    ),
    Mutant(
        name="tokens are issued one by one under the name of a graph",
        file=EXECUTION,
        old=".replay(), token.replay)",
        new=".replay(), turn.go_on)",
        misleads="the gain of graphs, which is largest for single tokens, is never seen",
        killer="test_generation.py::test_a_graph_takes_the_tokens_off_the_host",
    ),
    Mutant(
        name="tokens of the warm-up count",
        file=LAUNCH,
        old="        job.tokens_at_s.clear()\n",
        new="",
        misleads="the slow first generations are in the times to the first token",
        killer="test_every_case.py::test_a_case_is_measured_whole[llama_8b-bf16]",
    ),
    # --- memory --------------------------------------------------------------------------------------------
    Mutant(
        name="the peak of memory is the present",
        file=HARDWARE,
        old='self._ask("max_memory_allocated")',
        new='self._ask("memory_allocated")',
        misleads="a step seems to fit a card that it does not fit",
        killer="test_steps.py::test_the_peak_holds_what_a_step_frees_before_it_ends",
    ),
    Mutant(
        name="the peak of memory is never reset",
        file=HARDWARE,
        old='        self._ask("reset_peak_memory_stats")\n',
        new="",
        misleads="trials of algorithms in the first steps count as memory of a step",
        killer="test_capture.py::test_the_peak_is_that_of_the_steps_and_not_of_trials_or_of_the_present",
    ),
    Mutant(
        name="the peak of memory is read after the check of a graph",
        file=CASE,
        old=(
            "    seen.peak_memory_bytes = hardware.peak_memory_bytes()\n"
            "    if execution is not Execution.EAGER:\n"
            "        seen.graph_error = guards.graph_error(work, advance, draws=seen.draws)\n"
            "        hardware.drop_cache()  # what the check took beside the graph is no memory of the step\n"
        ),
        new=(
            "    if execution is not Execution.EAGER:\n"
            "        seen.graph_error = guards.graph_error(work, advance, draws=seen.draws)\n"
            "        hardware.drop_cache()  # what the check took beside the graph is no memory of the step\n"
            "    seen.peak_memory_bytes = hardware.peak_memory_bytes()\n"
        ),
        misleads="copies of weights and moments that only the check makes count as memory of a step",
        killer="test_steps.py::test_the_peak_of_a_graph_is_not_that_of_its_check",
    ),
    Mutant(
        name="an allocator statistic that does not exist",
        file=HARDWARE,
        old='figures.get("segment.all.current")',
        new='figures.get("segments.all.current")',
        misleads="a warm-up ends while the allocator still grows",
        killer="test_capture.py::test_the_allocator_is_watched_while_a_case_warms_up",
    ),
    Mutant(
        name="the cache is never handed back",
        file=HARDWARE,
        old='        self._ask("empty_cache")\n',
        new="",
        misleads="a case runs out of memory because of the one before",
        killer="test_failures.py::test_nothing_of_a_case_is_left_on_the_device",
    ),
    Mutant(
        name="what was tried before the steps stays in the cache",
        file=CASE,
        old="    hardware.drop_cache()  # with what cuDNN's trials took: it took what was free, and no step needs it\n",
        new="",
        misleads="memory that only cuDNN's trials took is told as need of the step",
        killer="test_capture.py::test_what_was_tried_before_the_steps_is_no_memory_of_theirs",
    ),
    Mutant(
        name="what the check of a graph took stays in the cache",
        file=CASE,
        old="        hardware.drop_cache()  # what the check took beside the graph is no memory of the step\n",
        new="",
        misleads="the device shows twice the memory that the graph needs",
        killer="test_capture.py::test_what_the_check_of_a_graph_takes_is_handed_back_before_it_is_timed",
    ),
    Mutant(
        name="workspaces of cuBLAS are not handed back",
        file=HARDWARE,
        old="            clear()\n",
        new="            pass\n",
        misleads="the peak of a case counts the graphs that were captured before it",
        killer="test_capture.py::test_a_graph_has_the_same_peak_whatever_was_captured_before_it",
    ),
    Mutant(
        name="the collector does not run before the cache is emptied",
        file=HARDWARE,
        old="        gc.collect()\n",
        new="",
        misleads="the model of the case before still lies on the device",
        killer="test_failures.py::test_a_model_that_holds_on_to_itself_is_gone_after_its_case",
    ),
    Mutant(
        name="only torch's own error is want of memory",
        file=LAUNCH,
        old="    if lacks_memory(error):\n",
        new="    if type(error).__name__ == 'OutOfMemoryError':\n",
        misleads="a batch for which cuDNN or cuBLAS has no memory is reported as a fault",
        killer="test_failures.py::test_want_of_memory_is_told_from_a_fault_in_whatever_words",
    ),
    Mutant(
        name="a process goes on after a failed case",
        file=CASE,
        old="        if status is not Status.OK and (status is not Status.TIMEOUT or self.team is not None):\n",
        new="        if False:\n",
        misleads="every case after an error that sticks fails too",
        killer="test_failures.py::test_a_step_that_waits_for_the_device_is_unsupported_with_its_cause",
    ),
    Mutant(
        name="cuDNN does not try its algorithms",
        file=HARDWARE,
        old="torch.backends.cudnn.benchmark = True",
        new="torch.backends.cudnn.benchmark = False",
        misleads="convolutions are 3 to 16 % slower than users have them",
        killer="test_steps.py::test_cudnn_tries_its_algorithms_on_each_new_shape",
    ),
    # --- events and profiler ----------------------------------------------------------------------------------
    Mutant(
        name="events are read before they have passed",
        file=BUSY,
        old="    torch.cuda.synchronize()\n",
        new="",
        misleads="the second look fails, or reads times of nothing",
        killer="test_capture.py::test_events_span_the_device_time_of_each_step",
    ),
    Mutant(
        name="events are made without timing",
        file=BUSY,
        old="torch.cuda.Event(enable_timing=True)",
        new="torch.cuda.Event()",
        misleads="the second look fails",
        killer="test_capture.py::test_events_span_the_device_time_of_each_step",
    ),
    Mutant(
        name="times of events are off by 1000",
        file=BUSY,
        old="before.elapsed_time(after) * 1e-3",
        new="before.elapsed_time(after)",
        misleads="device times in the record are milliseconds under the name of seconds",
        killer="test_capture.py::test_events_span_the_device_time_of_each_step",
    ),
    Mutant(
        name="an event is recorded before its step",
        file=BUSY,
        old="        advance(index)\n        edge.record()\n",
        new="        edge.record()\n        advance(index)\n",
        misleads="the first time is of nothing and the last step of none",
        killer="test_capture.py::test_events_span_the_device_time_of_each_step",
    ),
    Mutant(
        name="the busy share is off by 1000",
        file=BUSY,
        old="kernels_us * 1e-6 / wall_s",
        new="kernels_us * 1e-3 / wall_s",
        misleads="a host-bound step seems to fill the device",
        killer="test_capture.py::test_the_busy_share_is_that_of_the_kernels",
    ),
    Mutant(
        name="annotations count as kernels",
        file=BUSY,
        old='        if not getattr(event, "is_user_annotation", False)',
        new="        if True",
        misleads="the busy share counts every kernel twice",
        killer="test_capture.py::test_the_busy_share_is_that_of_the_kernels",
    ),
    Mutant(
        name="the busy share is of profiled steps",
        file=BUSY,
        old="as seen:\n        clock.time(partial(steps, count))\n",
        new="as seen:\n        wall_s = clock.time(partial(steps, count))\n",
        misleads="the profiler's own work makes a busy device look idle",
        killer="test_capture.py::test_the_busy_share_is_that_of_the_kernels",
    ),
    Mutant(
        name="the time to issue a step holds the wait for it",
        file=BUSY,
        old="        advance(index)\n        times.append(clock.now_s() - start)\n",
        new="        advance(index)\n        clock.synchronize()\n        times.append(clock.now_s() - start)\n",
        misleads="every step seems to be bound by the host",
        killer="test_capture.py::test_issue_times_tell_the_host_from_the_device",
    ),
    Mutant(
        name="the time to issue a step begins with a busy device",
        file=BUSY,
        old="        clock.synchronize()\n        start = clock.now_s()\n",
        new="        start = clock.now_s()\n",
        misleads="earlier work counts as work of the step",
        killer="test_steps.py::test_issue_times_begin_with_an_idle_device",
    ),
    # --- the checks of a graph ----------------------------------------------------------------------------
    Mutant(
        name="replay and eager draw other random numbers",
        file=GUARDS,
        old="    seed_all(0)\n",
        new="    torch.seed()\n",
        misleads="models with dropout are invalid as graphs",
        killer="test_every_case.py::test_a_case_is_measured_whole[vgg16-fp32]",
    ),
    Mutant(
        name="replay and eager start from different weights",
        file=GUARDS,
        old="        eager = _two_losses(work, work.step)\n        state.restore()\n",
        new="        eager = _two_losses(work, work.step)\n",
        misleads="sound graphs are invalid",
        killer="test_capture.py::test_an_own_model_that_only_looks_at_its_input_on_the_device_is_captured",
    ),
    Mutant(
        name="the state that is restored lacks the moments",
        file=GUARDS,
        old="            for state in work.optimizer.state.values():\n",
        new="            for state in ():\n",
        misleads="training after the check is not the training that was asked for",
        killer="test_steps.py::test_the_check_of_a_graph_leaves_no_trace",
    ),
    Mutant(
        name="the check leaves its own steps in the weights",
        file=GUARDS,
        old="        prepared = _two_losses(work, advance)\n    state.restore()\n",
        new="        prepared = _two_losses(work, advance)\n",
        misleads="as above",
        killer="test_steps.py::test_the_check_of_a_graph_leaves_no_trace",
    ),
    Mutant(
        name="the check compares eager steps with eager steps",
        file=GUARDS,
        old="        prepared = _two_losses(work, advance)\n",
        new="        prepared = _two_losses(work, work.step)\n",
        misleads="a graph that computes something else is sold as fast",
        killer="test_steps.py::test_a_step_that_a_graph_freezes_is_found_out",
    ),
    # --- micro-benchmarks -----------------------------------------------------------------------------------
    Mutant(
        name="the clearing of the cache is timed",
        file=MICRO,
        old="        cache.zero_()\n        before.record()\n",
        new="        before.record()\n        cache.zero_()\n",
        misleads="short kernels seem ten times slower than they are",
        killer="test_micro.py::test_the_cache_is_cleared_outside_what_is_timed",
    ),
    Mutant(
        name="the cache is not cleared",
        file=MICRO,
        old="        cache.zero_()\n",
        new="",
        misleads="operands lie in the L2 cache: a copy seems faster than the memory",
        killer="test_micro.py::test_no_operand_is_left_in_the_cache_for_the_next_repetition",
    ),
    Mutant(
        name="events of a product are read before they have passed",
        file=MICRO,
        old="        torch.cuda.synchronize()\n",
        new="",
        misleads="micro-benchmarks fail, or read times of nothing",
        killer="test_micro.py::test_every_figure_is_that_of_the_device",
    ),
    Mutant(
        name="times of products are off by 1000",
        file=MICRO,
        old="before.elapsed_time(after)) * 1e-3",
        new="before.elapsed_time(after))",
        misleads="rates a thousand times too low",
        killer="test_micro.py::test_every_figure_is_that_of_the_device",
    ),
    Mutant(
        name="products are timed by the host",
        file=MICRO,
        old="    if not (probe.on_device and hardware.is_cuda):\n",
        new="    if True:\n",
        misleads="the start of a kernel counts as work",
        killer="test_micro.py::test_every_figure_is_that_of_the_device",
    ),
    Mutant(
        name="page-locked copies come from ordinary memory",
        file=MICRO,
        old="pin_memory=pinned",
        new="pin_memory=False",
        misleads="the link seems slower than it is, and models to be fed too slowly",
        killer="test_micro.py::test_transfers_lie_in_the_memory_that_their_name_says",
    ),
    Mutant(
        name="a thousand launches count as one",
        file=PROBES,
        old="    each = median(seconds) / probe.repeats\n",
        new="    each = median(seconds)\n",
        misleads="a launch seems to take milliseconds",
        killer="test_micro.py::test_every_figure_is_that_of_the_device",
    ),
    # --- telemetry --------------------------------------------------------------------------------------------
    Mutant(
        name="energy is counted from before the warm-up",
        file=LAUNCH,
        old=(
            "        warm_up(loop, budget(0.0), series)\n"
            '        bench.phase("timed")\n'
            "        job.tokens_at_s.clear()\n"
            "        held_s, joules = telemetry.held_clocks_s(), sampler.energy_j()\n"
        ),
        new=(
            "        held_s, joules = telemetry.held_clocks_s(), sampler.energy_j()\n"
            "        warm_up(loop, budget(0.0), series)\n"
            '        bench.phase("timed")\n'
        ),
        misleads="a sample costs the energy of the warm-up too",
        killer="test_telemetry.py::test_energy_and_held_clocks_are_those_of_the_timed_rounds",
    ),
    Mutant(
        name="energy is read twice at the start",
        file=LAUNCH,
        old="(joules, sampler.energy_j())",
        new="(joules, joules)",
        misleads="no energy is ever known",
        killer="test_telemetry.py::test_energy_and_held_clocks_are_those_of_the_timed_rounds",
    ),
    Mutant(
        name="samples are stamped by another clock than the rounds",
        file=LAUNCH,
        old="Sampler(telemetry, loop.clock.now_s)",
        new="Sampler(telemetry, time.monotonic)",
        misleads="clocks and power of the rounds are those of some other time",
        killer="test_telemetry.py::test_samples_lie_on_the_clock_of_the_rounds",
    ),
    Mutant(
        name="energy in millijoules under the name of joules",
        file=READINGS,
        old='ENERGY.of("mJ", divisor=1000)',
        new='ENERGY.of("mJ", divisor=1)',
        misleads="energy is a thousand times too high, or dropped as implausible",
        killer="test_telemetry.py::test_what_the_driver_counts_arrives_in_si_units",
    ),
    Mutant(
        name="power in milliwatts under the name of watts",
        file="gpubench/probe/nvml_profile.py",
        old='POWER.of("mW", divisor=1000)',
        new='POWER.of("mW", divisor=1)',
        misleads="power is a thousand times too high, or dropped as no reading",
        killer="test_telemetry.py::test_what_the_driver_counts_arrives_in_si_units",
    ),
    Mutant(
        name="the clock of the memory under the name of the cores'",
        file=READINGS,
        old='"nvmlDeviceGetClockInfo", CLOCK_SM',
        new='"nvmlDeviceGetClockInfo", CLOCK_MEMORY',
        misleads="a card that is throttled seems to hold its clock",
        killer="test_telemetry.py::test_what_the_driver_counts_arrives_in_si_units",
    ),
    Mutant(
        name="time of held clocks is off by 1000",
        file=READINGS,
        old='HELD.of("ns", divisor=10**9)',
        new='HELD.of("ns", divisor=10**6)',
        misleads="a moment at the power limit counts as all the time",
        killer="test_telemetry.py::test_what_the_driver_counts_arrives_in_si_units",
    ),
    Mutant(
        name="memory errors are counted from now to now",
        file=LAUNCH,
        old="    errors = telemetry.ecc_uncorrected()\n",
        new="    errors = None\n",
        misleads="a device that miscounts is trusted",
        killer="test_telemetry.py::test_what_the_driver_counts_arrives_in_si_units",
    ),
    Mutant(
        name="CUDA may open another device than the one whose telemetry is read",
        file=WORKER,
        old="    findings = check_device(setup.device)\n",
        new="    findings = ()\n",
        misleads="times of one card stand beside power and clocks of another",
        killer="test_telemetry.py::test_another_device_than_the_one_that_was_probed_is_refused",
    ),
    # --- several GPUs, and trials of a batch ----------------------------------------------------------------
    Mutant(
        name="the processes of a job do not exchange gradients",
        file=TEAM,
        old="    if work.case.task is not TaskKind.TRAIN or work.case.parallel_mode is not ParallelMode.DDP:\n",
        new="    if True:\n",
        misleads="N GPUs are N times one, whatever joins them",
        killer="test_team.py::test_a_job_of_two_trains_one_model_and_waits_for_the_device",
    ),
    Mutant(
        name="every process of a job trains on the same samples",
        file=TEAM,
        old="_built(order, setup.seed + place.rank, hardware)",
        new="_built(order, setup.seed, hardware)",
        misleads="the job learns from one share of its data",
        killer="test_team.py::test_a_job_of_two_trains_one_model_and_waits_for_the_device",
    ),
    Mutant(
        name="the clock of a job waits for the others and not for its own GPU",
        file=TEAM,
        old="    hardware.clock().synchronize()\n    distributed.all_reduce",
        new="    distributed.all_reduce",
        misleads="the time to issue steps is sold as their time",
        killer="test_team.py::test_a_job_of_two_trains_one_model_and_waits_for_the_device",
    ),
    Mutant(
        name="all processes of a job use the first GPU",
        file=TEAM,
        old="    hardware = open_hardware(profile, place.local_rank)\n",
        new="    hardware = open_hardware(profile)\n",
        misleads="one GPU does the work of all, and the job is refused by NCCL",
        killer="test_team.py::test_a_job_of_two_trains_one_model_and_waits_for_the_device",
    ),
    Mutant(
        name="the other processes of a job are done before their GPUs are",
        file=TEAM,
        old="            work.step(index)\n        _wait(hardware)\n",
        new="            work.step(index)\n        distributed.all_reduce(torch.zeros(1))\n",
        misleads="a step of a job ends for the clock while other GPUs are at it",
        killer="test_job.py::test_the_others_step_as_often_as_is_announced_and_wait_for_their_device",
    ),
    Mutant(
        name="a sharded model is sharded whole",
        file=TEAM,
        old="    for part in (*blocks, model):\n",
        new="    for part in (model,):\n",
        misleads="every GPU holds all weights at once, and no exchange hides behind the work",
        killer="test_job.py::test_fsdp_shards_each_block_by_itself",
    ),
    Mutant(
        name="exchanges are timed by another clock than the job's",
        file=MICRO,
        old="    clock = team.clock()\n",
        new="    clock = type(team.clock())()\n",
        misleads="the start of an exchange is sold as the exchange",
        killer="test_job.py::test_the_rate_of_an_exchange_is_that_of_the_bus",
    ),
    Mutant(
        name="many exchanges are announced and one is done",
        file=PROBES,
        old=(
            "        def repetition() -> None:\n"
            "            for _ in range(probe.repeats):\n                action()\n"
        ),
        new="        def repetition() -> None:\n            action()\n",
        misleads="small exchanges seem a hundred times too fast, or the job hangs",
        killer="test_job.py::test_the_rate_of_an_exchange_is_that_of_the_bus",
    ),
    Mutant(
        name="the bytes of a tensor pass for those of the bus",
        file=MICRO,
        old="work=2 * (processes - 1) / processes * size",
        new="work=size",
        misleads="the rate cannot be held against a link",
        killer="test_job.py::test_the_rate_of_an_exchange_is_that_of_the_bus",
    ),
    Mutant(
        name="an exchange is of four times as many bytes as its name says",
        file=MICRO,
        old="tensor = torch.zeros(size // 4, device=device)",
        new="tensor = torch.zeros(size, device=device)",
        misleads="the link seems four times too slow",
        killer="test_job.py::test_the_rate_of_an_exchange_is_that_of_the_bus",
    ),
    Mutant(
        name="a job may draw the power of one GPU alone",
        file=CASE,
        old="limit * self.team.size",
        new="limit",
        misleads="the energy of a job is dropped as implausible",
        killer="test_telemetry.py::test_a_job_may_draw_the_power_of_all_its_gpus",
    ),
    Mutant(
        name="a trial that failed leaves its process to the next",
        file=LAUNCH,
        old="spent=bench.is_spent(status)",
        new="spent=False",
        misleads="after one batch too many no batch fits",
        killer="test_batch_search.py::test_the_batch_that_a_search_finds_can_be_measured_and_a_larger_one_cannot",
    ),
    Mutant(
        name="a trial leaves out the checks at the end of a measurement",
        file=CASE,
        old="            work.edge_loss(advance(index), index)\n        _prove_again(seen, work, context.hardware)\n",
        new="            work.edge_loss(advance(index), index)\n",
        misleads="the largest batch that fits is measured, and fails after its rounds",
        killer="test_batch_search.py::test_the_batch_that_a_search_finds_can_be_measured_and_a_larger_one_cannot",
    ),
    # --- precision: strict fp32 may share its process ------------------------------------------------------
    Mutant(
        name="a case computes with the switches of the case before",
        file=PRECISION,
        old="        _set(Switches.wanted(precision))\n",
        new="        pass\n",
        misleads="TF32 is sold as fp32",
        killer="test_every_case.py::test_strict_fp32_is_strict_in_the_process_of_the_other_precisions",
    ),
    Mutant(
        name="the product that proves a precision is computed on the host",
        file=PRECISION,
        old="(a.to(device) @ b.to(device)).cpu()",
        new="a @ b",
        misleads="TF32 is sold as fp32, with a proof",
        killer="test_every_case.py::test_strict_fp32_is_strict_in_the_process_of_the_other_precisions",
    ),
    Mutant(
        name="the convolution that proves a precision is computed on the host",
        file=PRECISION,
        old="convolve(image.to(device), kernel.to(device)).cpu()",
        new="convolve(image, kernel)",
        misleads="as above",
        killer="test_every_case.py::test_strict_fp32_is_strict_in_the_process_of_the_other_precisions",
    ),
    Mutant(
        name="the recurrent layer that proves a precision is computed on the host",
        file=PRECISION,
        old="_error(single(inputs.to(device))[0].cpu(), ",
        new="_error(single.cpu()(inputs)[0], ",
        misleads="as above",
        killer="test_proofs.py::test_tf32_that_is_in_force_whatever_the_switches_say_is_seen",
    ),
    Mutant(
        name="the switch of recurrent layers is left as the case before set it",
        file=PRECISION,
        old="        if switch is not None and value is not None:\n",
        new="        if switch is not None and value is not None and switch is not torch.backends.cudnn.rnn:\n",
        misleads="an LSTM in TF32 is sold as fp32",
        killer="test_every_case.py::test_strict_fp32_is_strict_in_the_process_of_the_other_precisions",
    ),
    Mutant(
        name="recurrent layers of strict fp32 are not proven",
        file=CASE,
        old="        errors[RECURRENT] = recurrent_error(device)\n",
        new="        pass\n",
        misleads="an LSTM in TF32 is sold as fp32, with a proof",
        killer="test_every_case.py::test_recurrent_layers_in_tf32_whatever_the_switches_say_are_seen_in_their_rows",
    ),
    Mutant(
        name="a latency does not wait for the device",
        file=BUSY,
        old="        times.append(clock.time(one))\n",
        new=(
            "        began_at_s = clock.now_s()\n"
            "        one()\n"
            "        times.append(clock.now_s() - began_at_s)\n"
        ),
        misleads="the time to issue a pass is sold as its latency",
        killer="test_steps.py::test_a_latency_spans_all_the_work_of_its_pass",
    ),
    Mutant(
        name="half of a product is computed",
        file=MICRO,
        old="        return lambda: torch.mm(a, b, out=out)\n",
        new="        return lambda: torch.mm(a[: size // 2], b, out=out[: size // 2])\n",
        misleads="the rate of products is twice what the device does",
        killer="test_micro.py::test_a_product_does_all_the_work_that_its_rate_counts",
    ),
    Mutant(
        name="products of strict fp32 are timed under TF32",
        file=MICRO,
        old="Precision.FP32)),\n",
        new="Precision.FP32) if probe.precision != 'fp32' else Precision.TF32),\n",
        misleads="the rate of TF32 stands as that of fp32, with a proof",
        killer="test_micro.py::test_every_product_is_timed_under_the_switches_of_its_precision",
    ),
    Mutant(
        name="what clears the cache fits in it",
        file=MICRO,
        old="CACHE_BYTES = 256 * MIB\n",
        new="CACHE_BYTES = MIB\n",
        misleads="operands are found in the cache, and bandwidth is that of the cache",
        killer="test_micro.py::test_what_clears_the_cache_is_larger_than_any_cache",
    ),
    Mutant(
        name="products of strict fp32 are not proven",
        file=MICRO,
        old="doubts = _not_ieee(hardware) if strict else ()",
        new="doubts = ()",
        misleads="the rate of TF32 stands as that of fp32, without a doubt",
        killer="test_micro.py::test_products_that_are_not_ieee_are_doubted",
    ),
    Mutant(
        name="a spent process tries the next batch",
        file=f"{MEASURE}batch_search.py",
        old="        if done.spent:\n",
        new="        if False:\n",
        misleads="as above",
        killer="test_batch_search.py::test_a_batch_that_did_not_fit_leaves_its_process_to_no_other",
    ),
)
