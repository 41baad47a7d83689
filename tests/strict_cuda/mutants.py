"""Mutants of the CUDA path, one broken line each, which the tests on the strict fake must detect.

Run with ``pytest -m mutants -n 0 tests/test_mutants.py -k cuda``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mutation import Mutant, Table


def _in(module: str) -> Callable[..., Mutant]:
    """Return what makes a mutant of a module that measures."""
    return partial(Mutant, file=f"gpubench/measure/{module}.py")


_case, _step, _loop, _guard, _launch = (_in(each) for each in ("case", "step", "loop", "guards", "launch"))
_micro, _probe, _team, _worker = (_in(each) for each in ("micro", "probes", "team", "worker"))
_check, _proof, _launcher = (_in(each) for each in ("checks", "proofs", "launcher"))
_readings = partial(Mutant, file="gpubench/probe/nvidia.py")

MUTANTS = (
    # --- the clock and the rounds --------------------------------------------------------------------------
    _step(
        name="the clock never waits for the GPU",
        old="return Clock(synchronize=synchronize)",
        new="return Clock()",
        misleads="the time to issue a step is reported as the time of the step, several times too fast",
        killer="test_capture.py::test_the_clock_waits_for_the_device_at_both_edges",
    ),
    _loop(
        name="the clock stops before the GPU is done",
        old="            work()\n        self.synchronize()\n",
        new="            work()\n",
        misleads="the time of each round lacks the end of its work",
        killer="test_capture.py::test_the_clock_waits_for_the_device_at_both_edges",
    ),
    _loop(
        name="the clock starts while earlier work is underway",
        old="        self.synchronize()\n        start = self.now_ns()\n",
        new="        start = self.now_ns()\n",
        misleads="earlier work counts as work of the round",
        killer="test_capture.py::test_the_clock_waits_for_the_device_at_both_edges",
    ),
    _loop(
        name="the loss is read after every step of a round",
        old="                result = self.advance(self.index)\n",
        new="                result = self.advance(self.index)\n                self.edge_loss(result, self.index)\n",
        misleads="the host never runs ahead: short steps look slower than they are",
        killer="test_steps.py::test_a_round_waits_for_the_device_only_at_its_edges",
    ),
    # --- the step ------------------------------------------------------------------------------------------
    _step(
        name="each step waits for the GPU",
        old="    return loss.detach()",
        new="    loss.item()\n    return loss.detach()",
        misleads="the host never runs ahead, and no step can be captured",
        killer="test_capture.py::test_no_step_of_a_round_waits_for_the_device",
    ),
    _step(
        name="the optimizer is not fused",
        old='made = factory(parameters, **({"fused": True} if can_fuse else {}))',
        new="made = factory(parameters)",
        misleads="the gradient scaler waits for the GPU in each step of amp-fp16",
        killer="test_capture.py::test_no_step_of_a_round_waits_for_the_device",
    ),
    _step(
        name="the optimizer of a graph is not capturable",
        old='            group["capturable"] = True',
        new="            pass",
        misleads="graph rows of Adam are refused",
        killer="test_capture.py::test_a_replay_trains_as_eager_steps_do",
    ),
    _step(
        name="the gradient scale is never updated",
        old="        work.scaler.update()\n",
        new="",
        misleads="amp-fp16 is measured without a part of its step",
        killer="test_capture.py::test_no_step_of_a_round_waits_for_the_device",
    ),
    _step(
        name="inference keeps what a backward pass would need",
        old="        with work.grad_modes[0](), work.autocast():\n            outputs",
        new="        with work.autocast():\n            outputs",
        misleads="inference needs the memory of training, and seems not to fit",
        killer="test_steps.py::test_an_inference_keeps_nothing_for_a_backward_pass",
    ),
    _step(
        name="images are not channels_last",
        old="            return moved.contiguous(memory_format=torch.channels_last)\n",
        new="            return moved\n",
        misleads="each step converts its images, and the row says that they already had that layout",
        killer="test_steps.py::test_images_are_channels_last_in_every_step_of_such_a_case",
    ),
    # --- capture and replay --------------------------------------------------------------------------------
    _guard(
        name="no side stream before a capture",
        old="    with torch.cuda.stream(side):\n",
        new="    with torch.cuda.stream(torch.cuda.current_stream()):\n",
        misleads="library handles and gradients are created inside the capture, which fails or reads freed memory",
        killer="test_capture.py::test_a_capture_waits_for_its_warm_up_and_leaves_no_race",
    ),
    _guard(
        name="the side stream does not wait for the stream that created the model",
        old="    side.wait_stream(torch.cuda.current_stream())\n",
        new="",
        misleads="the first steps may read weights that are still being written",
        killer="test_capture.py::test_a_capture_waits_for_its_warm_up_and_leaves_no_race",
    ),
    _guard(
        name="the graphs of a step share no memory",
        old="            pool = graph.pool()\n",
        new="",
        misleads="graph rows need several times their memory, or run out of it",
        killer="test_capture.py::test_the_graphs_of_one_step_share_their_memory",
    ),
    _guard(
        name="one graph is replayed for every batch",
        old="graphs[index % len(graphs)]",
        new="graphs[0]",
        misleads="a graph row trains on one batch, which it memorizes",
        killer="test_capture.py::test_each_batch_has_its_graph_and_graphs_are_replayed_in_turn",
    ),
    _guard(
        name="eager steps are reported as a graph",
        old="    return replay\n",
        new="    return work.step\n",
        misleads="the gain from graphs is never seen",
        killer="test_steps.py::test_graph_removes_launch_overhead_from_steps",
    ),
    _guard(
        name="eager steps are reported as compiled",
        old='    if not counters["stats"]["unique_graphs"]:\n',
        new="    if False:\n",
        misleads="a row says compile although nothing was compiled",
        killer="test_every_case.py::test_everyday_case_is_measured_end_to_end[lstm-fp32]",
    ),
    _guard(
        name="a failed capture hides what ended it",
        old="            cause = cause.__context__\n",
        new="            break\n",
        misleads='a refusal names "a previous error" and not the .item() of the model',
        killer="test_failures.py::test_a_step_that_waits_for_the_device_is_unsupported_with_its_cause",
    ),
    _guard(
        name="running out of memory inside a capture counts as a refusal",
        old="        if lacks_memory(cause):\n",
        new="        if False:\n",
        misleads="a batch that is too large is reported as a model that no graph can take",
        killer="test_failures.py::test_lack_of_memory_is_distinguished_from_a_fault_or_a_refusal_in_any_wording",
    ),
    _guard(
        name="a full device is not noticed if a capture ends without a message",
        old="    free, total = torch.cuda.mem_get_info()\n",
        new="    free = total = torch.cuda.mem_get_info()[1]\n",
        misleads="as above, when the allocator frees memory inside the capture",
        killer="test_failures.py::test_a_capture_that_ends_silently_on_a_full_device_counts_as_out_of_memory",
    ),
    _guard(
        name="a failed capture of a generation does not report what ended it",
        old="    with _capturing():\n",
        new="    if True:\n",
        misleads="a generation that is too large is reported as a model that failed, and a search loses its case",
        killer="test_failures.py::test_a_captured_generation_that_ends_on_a_full_device_counts_as_out_of_memory",
    ),
    # --- generation ----------------------------------------------------------------------------------------
    _step(
        name="the host does not wait for the first token",
        old="    (start or generation.start)(index)\n    generation.ids.tolist()\n",
        new="    (start or generation.start)(index)\n",
        misleads="the time to issue a prompt is reported as the time to the first token",
        killer="test_generation.py::test_each_token_is_on_the_host_before_the_next_one_starts",
    ),
    _step(
        name="the host does not wait for the tokens after the first",
        old="        (go_on or generation.go_on)()\n        generation.ids.tolist()\n",
        new="        (go_on or generation.go_on)()\n",
        misleads="tokens seem to be generated as fast as they are issued",
        killer="test_generation.py::test_each_token_is_on_the_host_before_the_next_one_starts",
    ),
    _step(
        name="each token overwrites the previous one in the cache",
        old="        self.position.add_(1)\n",
        new="",
        misleads="tokens are generated without their sequence",
        killer="test_generation.py::test_a_generation_gives_the_scores_of_the_full_forward_pass",
    ),
    _step(
        name="tokens of a graph are written where the next replay does not read",
        old="        self.ids.copy_(scores.argmax(-1))\n",
        new="        self.ids = scores.argmax(-1)\n",
        misleads="a graph continues with another batch's tokens",
        killer="test_generation.py::test_replays_generate_what_eager_steps_do_batch_by_batch",
    ),
    _guard(
        name="the prompts of one batch are replayed for every batch",
        old="prompts[n % len(prompts)].replay()",
        new="prompts[0].replay()",
        misleads="graph rows answer the same prompts again and again",
        killer="test_generation.py::test_replays_generate_what_eager_steps_do_batch_by_batch",
    ),
    _guard(
        name="tokens issued one by one are reported as a graph",
        old=".replay(), token.replay)",
        new=".replay(), generation.go_on)",
        misleads="the gain from graphs, which is largest for single tokens, is never seen",
        killer="test_generation.py::test_graph_removes_launch_overhead_from_token_times",
    ),
    _launch(
        name="tokens of the warm-up count",
        old="        job.tokens_at_s.clear()\n",
        new="",
        misleads="the times to the first token include the slow first generations",
        killer="test_every_case.py::test_everyday_case_is_measured_end_to_end[llama_8b-bf16]",
    ),
    # --- memory --------------------------------------------------------------------------------------------
    _case(
        name="the peak of memory is the current use",
        old='hardware.call("max_memory_allocated")',
        new='hardware.call("memory_allocated")',
        misleads="a step seems to fit on a card that is too small",
        killer="test_steps.py::test_the_peak_includes_what_a_step_frees_before_it_ends",
    ),
    _case(
        name="the peak of memory is never reset",
        old='    hardware.call("reset_peak_memory_stats")\n',
        new="",
        misleads="trials of algorithms in the first steps count as memory of a step",
        killer="test_capture.py::test_the_peak_is_that_of_the_steps_and_not_of_trials_or_current_use",
    ),
    _case(
        name="the peak of memory is read after the check of a graph",
        old=(
            '    recorder.note(peak_memory_bytes=hardware.call("max_memory_allocated"), peak_reserved_bytes=reserved)\n'
            "    recorder.spilled_bytes = max(0, (reserved or 0) - (hardware.memory_bytes() or math.inf))\n"
            "    if execution is not Execution.EAGER:\n"
            "        recorder.note(\n"
            "            graph_error=guards.graph_error(work, advance, draws=recorder.draws, carries=recorder.carries)\n"
            "        )\n"
            "        hardware.drop_cache()  # the check's memory is not part of the step's\n"
        ),
        new=(
            "    recorder.spilled_bytes = max(0, (reserved or 0) - (hardware.memory_bytes() or math.inf))\n"
            "    if execution is not Execution.EAGER:\n"
            "        recorder.note(\n"
            "            graph_error=guards.graph_error(work, advance, draws=recorder.draws, carries=recorder.carries)\n"
            "        )\n"
            "        hardware.drop_cache()  # the check's memory is not part of the step's\n"
            '    recorder.note(peak_memory_bytes=hardware.call("max_memory_allocated"), peak_reserved_bytes=reserved)\n'
        ),
        misleads="copies of weights and moments that only the check makes count as memory of a step",
        killer="test_steps.py::test_the_peak_of_a_graph_is_not_that_of_its_check",
    ),
    _step(
        name="the allocator is asked for a statistic that does not exist",
        old='figures.get("segment.all.current")',
        new='figures.get("segments.all.current")',
        misleads="a warm-up ends while the allocator is still growing",
        killer="test_capture.py::test_the_allocator_is_read_while_a_case_warms_up",
    ),
    _step(
        name="the cache is never released",
        old='        self.call("empty_cache")\n',
        new="",
        misleads="a case runs out of memory because of the one before",
        killer="test_failures.py::test_a_case_leaves_nothing_on_the_device",
    ),
    _case(
        name="memory of trials before the steps stays in the cache",
        old="    hardware.drop_cache()  # cuDNN's trials took all free memory, but no step needs that much\n",
        new="",
        misleads="memory that only cuDNN's trials took counts as memory of the step",
        killer="test_capture.py::test_memory_of_earlier_trials_is_not_the_memory_of_the_steps",
    ),
    _case(
        name="memory that the check of a graph took stays in the cache",
        old="        hardware.drop_cache()  # the check's memory is not part of the step's\n",
        new="",
        misleads="the device shows twice the memory that the graph needs",
        killer="test_capture.py::test_the_memory_of_the_check_of_a_graph_is_released_before_timing",
    ),
    _step(
        name="workspaces of cuBLAS are not released",
        old="            clear()\n",
        new="            pass\n",
        misleads="the peak of a case counts the graphs that were captured before it",
        killer="test_capture.py::test_earlier_captures_do_not_change_the_peak_of_a_graph",
    ),
    _step(
        name="the collector does not run before the cache is emptied",
        old="        gc.collect()\n",
        new="",
        misleads="the model of the previous case is still on the device",
        killer="test_failures.py::test_a_model_that_refers_to_itself_is_freed_after_its_case",
    ),
    _launch(
        name="only torch's own error counts as out of memory",
        old="    if lacks_memory(error):\n",
        new="    if type(error).__name__ == 'OutOfMemoryError':\n",
        misleads="a batch for which cuDNN or cuBLAS has no memory is reported as a fault",
        killer="test_failures.py::test_lack_of_memory_is_distinguished_from_a_fault_or_a_refusal_in_any_wording",
    ),
    _case(
        name="a process continues after a failed case",
        old="        if not (status is Status.OK or (status is Status.TIMEOUT and self.team is None)):\n",
        new="        if False:\n",
        misleads="every case after a sticky error fails too",
        killer="test_failures.py::test_a_step_that_waits_for_the_device_is_unsupported_with_its_cause",
    ),
    _step(
        name="cuDNN does not try its algorithms",
        old="torch.backends.cudnn.benchmark = True",
        new="torch.backends.cudnn.benchmark = False",
        misleads="convolutions are 3 to 16 % slower than users' own",
        killer="test_steps.py::test_cudnn_tries_its_algorithms_on_each_new_shape",
    ),
    # --- events and profiler ----------------------------------------------------------------------------------
    _guard(
        name="events are read before they have passed",
        old="    torch.cuda.synchronize()\n    return tuple(before",
        new="    return tuple(before",
        misleads="reading the events fails, or gives meaningless times",
        killer="test_capture.py::test_events_span_the_device_time_of_each_step",
    ),
    _guard(
        name="events are created without timing",
        old="torch.cuda.Event(enable_timing=True)",
        new="torch.cuda.Event()",
        misleads="the second look fails",
        killer="test_capture.py::test_events_span_the_device_time_of_each_step",
    ),
    _guard(
        name="times of events are off by 1000",
        old="before.elapsed_time(after) * 1e-3",
        new="before.elapsed_time(after)",
        misleads="device times in the record are milliseconds labeled as seconds",
        killer="test_capture.py::test_events_span_the_device_time_of_each_step",
    ),
    _guard(
        name="an event is recorded before its step",
        old="        advance(index)\n        edge.record()\n",
        new="        edge.record()\n        advance(index)\n",
        misleads="the first time is meaningless and the last step has none",
        killer="test_capture.py::test_events_span_the_device_time_of_each_step",
    ),
    _guard(
        name="the busy share is off by 1000",
        old="kernels_us * 1e-6 / wall_s",
        new="kernels_us * 1e-3 / wall_s",
        misleads="a host-bound step seems to fill the device",
        killer="test_capture.py::test_the_busy_share_is_that_of_the_kernels",
    ),
    _guard(
        name="annotations count as kernels",
        old='        if not getattr(event, "is_user_annotation", False)',
        new="        if True",
        misleads="the busy share counts every kernel twice",
        killer="test_capture.py::test_the_busy_share_is_that_of_the_kernels",
    ),
    _guard(
        name="the busy share is that of profiled steps",
        old="as seen:\n        clock.time(partial(steps, count))\n",
        new="as seen:\n        wall_s = clock.time(partial(steps, count))\n",
        misleads="the profiler's own work makes a busy device look idle",
        killer="test_capture.py::test_the_busy_share_is_that_of_the_kernels",
    ),
    _guard(
        name="the time to issue a step includes the wait for it",
        old="        advance(index)\n        times.append(clock.now_s() - start)\n",
        new="        advance(index)\n        clock.synchronize()\n        times.append(clock.now_s() - start)\n",
        misleads="every step seems to be host-bound",
        killer="test_capture.py::test_issue_times_separate_the_host_from_the_device",
    ),
    _guard(
        name="the time to issue a step begins with a busy device",
        old="        clock.synchronize()\n        start = clock.now_s()\n",
        new="        start = clock.now_s()\n",
        misleads="earlier work counts as work of the step",
        killer="test_steps.py::test_issue_times_begin_with_an_idle_device",
    ),
    # --- the checks of a graph ----------------------------------------------------------------------------
    _guard(
        name="replay and eager draw different random numbers",
        old="    seed_all(0)\n",
        new="    torch.seed()\n",
        misleads="models with dropout are invalid as graphs",
        killer="test_every_case.py::test_everyday_case_is_measured_end_to_end[vgg16-fp32]",
    ),
    _guard(
        name="replay and eager start from different weights",
        old="        eager = _two_losses(work, work.step)\n        state.restore()\n",
        new="        eager = _two_losses(work, work.step)\n",
        misleads="sound graphs are invalid",
        killer="test_capture.py::test_a_users_model_that_only_looks_at_its_input_on_the_device_is_captured",
    ),
    _guard(
        name="the restored state lacks the optimizer's moments",
        old='            for state in getattr(work.optimizer, "state", {}).values():\n',
        new="            for state in ():\n",
        misleads="training after the check is not the requested training",
        killer="test_steps.py::test_the_check_of_a_graph_leaves_no_trace",
    ),
    _guard(
        name="the check leaves its own steps in the weights",
        old="        prepared = _two_losses(work, advance)\n    state.restore()\n",
        new="        prepared = _two_losses(work, advance)\n",
        misleads="as above",
        killer="test_steps.py::test_the_check_of_a_graph_leaves_no_trace",
    ),
    _guard(
        name="the check compares eager steps with eager steps",
        old="        prepared = _two_losses(work, advance)\n",
        new="        prepared = _two_losses(work, work.step)\n",
        misleads="a graph that computes something else is reported as fast",
        killer="test_steps.py::test_a_step_that_a_graph_freezes_is_detected",
    ),
    # --- micro-benchmarks -----------------------------------------------------------------------------------
    _micro(
        name="the clearing of the cache is timed",
        old="        cache.zero_()\n        before.record()\n",
        new="        before.record()\n        cache.zero_()\n",
        misleads="short kernels seem ten times slower than they are",
        killer="test_micro.py::test_the_cache_is_cleared_outside_the_timed_region",
    ),
    _micro(
        name="the cache is not cleared",
        old="        cache.zero_()\n",
        new="",
        misleads="operands are in the L2 cache: a copy seems faster than the memory",
        killer="test_micro.py::test_cache_is_flushed_between_gemm_repetitions",
    ),
    _micro(
        name="events of a product are read before they have passed",
        old="        torch.cuda.synchronize()\n",
        new="",
        misleads="micro-benchmarks fail, or read meaningless times",
        killer="test_micro.py::test_micro_benchmark_figures_match_the_simulated_device",
    ),
    _micro(
        name="times of products are off by 1000",
        old="before.elapsed_time(after)) * 1e-3",
        new="before.elapsed_time(after))",
        misleads="rates are a thousand times too low",
        killer="test_micro.py::test_micro_benchmark_figures_match_the_simulated_device",
    ),
    _micro(
        name="products are timed by the host",
        old="    if not (probe.on_device and hardware.is_cuda):\n",
        new="    if True:\n",
        misleads="the launch of a kernel counts as work",
        killer="test_micro.py::test_micro_benchmark_figures_match_the_simulated_device",
    ),
    _micro(
        name="page-locked copies come from ordinary memory",
        old="pin_memory=pinned",
        new="pin_memory=False",
        misleads="the link seems slower than it is, and models seem to be fed too slowly",
        killer="test_micro.py::test_transfer_uses_pinned_or_pageable_memory_as_named",
    ),
    _probe(
        name="a thousand launches count as one",
        old="    call_s = median(times_s) / probe.repeats\n",
        new="    call_s = median(times_s)\n",
        misleads="a launch seems to take milliseconds",
        killer="test_micro.py::test_micro_benchmark_figures_match_the_simulated_device",
    ),
    # --- telemetry --------------------------------------------------------------------------------------------
    _launch(
        name="energy is counted from before the warm-up",
        old=(
            "        warm_up(loop, bench.budget, series)\n"
            '        bench.phase("timed")\n'
            "        job.tokens_at_s.clear()\n"
            "        held_before_s, joules_before = telemetry.held_clocks_s(), telemetry.energy_j()\n"
        ),
        new=(
            "        held_before_s, joules_before = telemetry.held_clocks_s(), telemetry.energy_j()\n"
            "        warm_up(loop, bench.budget, series)\n"
            '        bench.phase("timed")\n'
        ),
        misleads="a sample costs the energy of the warm-up too",
        killer="test_telemetry.py::test_energy_and_reduced_clocks_are_those_of_the_timed_rounds",
    ),
    _launch(
        name="the energy counter's first reading is also used as its last",
        old="(joules_before, telemetry.energy_j())",
        new="(joules_before, joules_before)",
        misleads="no energy is ever known",
        killer="test_telemetry.py::test_energy_and_reduced_clocks_are_those_of_the_timed_rounds",
    ),
    _launch(
        name="samples are stamped by a different clock than the rounds",
        old="sampling(telemetry, loop.clock.now_s)",
        new="sampling(telemetry, time.monotonic)",
        misleads="clocks and power of the rounds come from some other time",
        killer="test_telemetry.py::test_samples_use_the_clock_of_the_rounds",
    ),
    _readings(
        name="energy in millijoules is labeled as joules",
        old='ENERGY.in_unit("mJ", divisor=1000)',
        new='ENERGY.in_unit("mJ", divisor=1)',
        misleads="energy is a thousand times too high, or dropped as implausible",
        killer="test_telemetry.py::test_driver_counters_are_converted_to_si_units",
    ),
    Mutant(
        name="power in milliwatts is labeled as watts",
        file="gpubench/probe/nvml.py",
        old='POWER.in_unit("mW", divisor=1000)',
        new='POWER.in_unit("mW", divisor=1)',
        misleads="power is a thousand times too high, or dropped as implausible",
        killer="test_telemetry.py::test_driver_counters_are_converted_to_si_units",
    ),
    _readings(
        name="the clock of the memory is labeled as that of the cores",
        old="plausible.SM_CLOCK, clock, CLOCK_SM",
        new="plausible.SM_CLOCK, clock, CLOCK_MEMORY",
        misleads="a throttled card seems to keep its clock",
        killer="test_telemetry.py::test_driver_counters_are_converted_to_si_units",
    ),
    _readings(
        name="the time of reduced clocks is off by 1000",
        old='HELD_TIME.in_unit("ns", divisor=10**9)',
        new='HELD_TIME.in_unit("ns", divisor=10**6)',
        misleads="a moment at the power limit counts as all the time",
        killer="test_telemetry.py::test_driver_counters_are_converted_to_si_units",
    ),
    _launch(
        name="memory errors before the rounds are not read",
        old="    errors_before = telemetry.ecc_uncorrected()\n",
        new="    errors_before = None\n",
        misleads="errors during the rounds are unknown, so a device with faulty memory is trusted",
        killer="test_telemetry.py::test_driver_counters_are_converted_to_si_units",
    ),
    _worker(
        name="CUDA may open another device than the one whose telemetry is read",
        old="    findings = check_device(setup.device)\n",
        new="    findings = ()\n",
        misleads="times of one card are combined with power and clocks of another",
        killer="test_telemetry.py::test_a_device_other_than_the_probed_one_is_refused",
    ),
    # --- several GPUs, and trials of a batch ----------------------------------------------------------------
    _team(
        name="the processes of a job do not exchange gradients",
        old="    if work.case.task is not TaskKind.TRAIN or work.case.parallel_mode is not ParallelMode.DDP:\n",
        new="    if True:\n",
        misleads="N GPUs are N times as fast as one, whatever their link",
        killer="test_team.py::test_two_gpu_job_trains_one_model_and_synchronizes_when_timed",
    ),
    _team(
        name="every process of a job trains on the same samples",
        old="_built(order, setup.seed + place.rank, hardware)",
        new="_built(order, setup.seed, hardware)",
        misleads="the job learns from one share of its data",
        killer="test_team.py::test_two_gpu_job_trains_one_model_and_synchronizes_when_timed",
    ),
    _team(
        name="the clock of a job waits for the others and not for its own GPU",
        old="    hardware.clock().synchronize()\n    distributed.all_reduce",
        new="    distributed.all_reduce",
        misleads="the time to issue steps is reported as the time they take",
        killer="test_team.py::test_two_gpu_job_trains_one_model_and_synchronizes_when_timed",
    ),
    _team(
        name="all processes of a job use the first GPU",
        old="    hardware = open_hardware(profile, place.local_rank)\n",
        new="    hardware = open_hardware(profile)\n",
        misleads="one GPU does the work of all, and the job is refused by NCCL",
        killer="test_team.py::test_two_gpu_job_trains_one_model_and_synchronizes_when_timed",
    ),
    _team(
        name="the other processes of a job finish before their GPUs do",
        old="            work.step(index)\n        _wait(hardware)\n",
        new="            work.step(index)\n        distributed.all_reduce(torch.zeros(1))\n",
        misleads="the clock stops a step of a job while other GPUs are still working",
        killer="test_job.py::test_peer_processes_run_the_announced_steps_and_synchronize",
    ),
    _team(
        name="a sharded model is sharded as one unit",
        old="    for part in (*blocks, model):\n",
        new="    for part in (model,):\n",
        misleads="every GPU has all weights at once, and no exchange overlaps with the work",
        killer="test_job.py::test_fsdp_shards_each_block_separately",
    ),
    _micro(
        name="exchanges are timed by a different clock than the job's",
        old="    clock = team.clock()\n",
        new="    clock = type(team.clock())()\n",
        misleads="the time to start an exchange is reported as the time it takes",
        killer="test_job.py::test_the_rate_of_an_exchange_is_that_of_the_bus",
    ),
    _probe(
        name="many exchanges are announced and one is done",
        old="clock.time(action, probe.repeats)",
        new="clock.time(action)",
        misleads="small exchanges seem a hundred times too fast, or the job hangs",
        killer="test_job.py::test_the_rate_of_an_exchange_is_that_of_the_bus",
    ),
    _micro(
        name="the bytes of a tensor are reported as those of the bus",
        old="work=2 * (processes - 1) / processes * size",
        new="work=size",
        misleads="the rate cannot be compared with a link",
        killer="test_job.py::test_the_rate_of_an_exchange_is_that_of_the_bus",
    ),
    _micro(
        name="an exchange has four times as many bytes as its name says",
        old="tensor = torch.zeros(size // 4, device=device)",
        new="tensor = torch.zeros(size, device=device)",
        misleads="the link seems four times too slow",
        killer="test_job.py::test_the_rate_of_an_exchange_is_that_of_the_bus",
    ),
    _case(
        name="a job may draw the power of one GPU alone",
        old="limit * self.team.size",
        new="limit",
        misleads="the energy of a job is dropped as implausible",
        killer="test_telemetry.py::test_a_job_may_draw_the_power_of_all_its_gpus",
    ),
    _launch(
        name="a failed trial leaves its process to the next trial",
        old="spent=bench.is_spent(status)",
        new="spent=False",
        misleads="after one batch that is too large, no batch fits",
        killer="test_batch_search.py::test_the_batch_that_a_search_finds_can_be_measured_and_a_larger_one_cannot",
    ),
    _case(
        name="a trial leaves out the checks at the end of a measurement",
        old="            work.edge_loss(advance(index), index)\n        _prove_again(recorder, work, context)\n",
        new="            work.edge_loss(advance(index), index)\n",
        misleads="the largest batch that fits is measured, and fails after its rounds",
        killer="test_batch_search.py::test_the_batch_that_a_search_finds_can_be_measured_and_a_larger_one_cannot",
    ),
    # --- precision: strict fp32 may share its process -----------------------------------------------------------
    _step(
        name="a case computes with the switches of the previous case",
        old="        _set(Switches.wanted(precision))\n",
        new="        pass\n",
        misleads="TF32 is reported as fp32",
        killer="test_every_case.py::test_strict_fp32_is_strict_in_the_process_of_the_other_precisions",
    ),
    _step(
        name="the product that proves a precision is computed on the host",
        old="(a.to(device) @ b.to(device)).cpu()",
        new="a @ b",
        misleads="TF32 is reported as fp32, with a proof",
        killer="test_every_case.py::test_strict_fp32_is_strict_in_the_process_of_the_other_precisions",
    ),
    _step(
        name="the convolution that proves a precision is computed on the host",
        old="convolve(image.to(device), kernel.to(device))[:COMPARED_IMAGES].cpu()",
        new="convolve(image, kernel)[:COMPARED_IMAGES]",
        misleads="as above",
        killer="test_every_case.py::test_strict_fp32_is_strict_in_the_process_of_the_other_precisions",
    ),
    _step(
        name="the recurrent layer that proves a precision is computed on the host",
        old="copy.deepcopy(layer).to(device)(inputs.to(device))[0].cpu(), ",
        new="copy.deepcopy(layer)(inputs)[0], ",
        misleads="as above",
        killer="test_proofs.py::test_tf32_that_ignores_the_switches_is_detected",
    ),
    _step(
        name="the switch of recurrent layers keeps its value from the previous case",
        old="        if value is not None:\n",
        new="        if value is not None and switch is not torch.backends.cudnn.rnn:\n",
        misleads="an LSTM in TF32 is reported as fp32",
        killer="test_every_case.py::test_strict_fp32_is_strict_in_the_process_of_the_other_precisions",
    ),
    _step(
        name="recurrent layers of strict fp32 are not proven",
        old=" | {RECURRENT: recurrent_error(device)} if recurrent else errors\n",
        new="\n",
        misleads="an LSTM in TF32 is reported as fp32, with a proof",
        killer="test_every_case.py::test_recurrent_layers_in_tf32_are_flagged_whatever_the_switches_say",
    ),
    # --- positive controls: the value of a proof of a precision -------------------------------------------------
    _step(
        name="the intended TF32 of a control is fp32",
        old="    with switches_for(Precision.TF32):\n",
        new="    with switches_for(Precision.FP32):\n",
        misleads="no row of strict fp32 leads or anchors, on any card",
        killer="test_controls.py::test_tf32_shows_in_the_operators_by_which_fp32_is_proven",
    ),
    _step(
        name="the smallest convolution is the control, whether TF32 shows in it or not",
        old='            if control.errors["conv"] > limit:\n',
        new="            if True:\n",
        misleads="on an H100 the proof of convolutions cannot fail",
        killer="test_controls.py::test_a_convolution_too_small_for_tf32_is_proven_by_a_larger_one",
    ),
    _case(
        name="fp32 is proven by another convolution than its control",
        old="scale = self.control.scale if precision is Precision.FP32 else CONTROL_SCALES[0]\n",
        new="scale = CONTROL_SCALES[0]\n",
        misleads="a convolution that cannot fail counts as proven by one that can",
        killer="test_controls.py::test_a_convolution_too_small_for_tf32_is_proven_by_a_larger_one",
    ),
    _step(
        name="the control of a recurrent layer is left out",
        old="            control = Control(probe_errors(device, scale=scale) | recurrent, scale)\n",
        new="            control = Control(probe_errors(device, scale=scale), scale)\n",
        misleads="an LSTM in which TF32 would not show counts as proven",
        killer="test_controls.py::test_tf32_shows_in_the_operators_by_which_fp32_is_proven",
    ),
    _case(
        name="no control is stored",
        old="for name in errors if name in control}",
        new="for name in ()}",
        misleads="a proof that cannot fail counts as a proof",
        killer="test_controls.py::test_device_that_never_shows_tf32_leaves_fp32_unproven",
    ),
    _check(
        name="a control in which TF32 does not show counts as a control",
        old="if error is None or not error > precision.facts.error_limit(operator):\n",
        new="if error is None:\n",
        misleads="as above",
        killer="test_controls.py::test_device_that_never_shows_tf32_leaves_fp32_unproven",
    ),
    _step(
        name="AMP is proven without autocast",
        old="    with torch.autocast(device.type, dtype=dtype) if dtype is not None else nullcontext():\n",
        new="    with nullcontext():\n",
        misleads="the error of TF32 is reported as that of AMP",
        killer="test_controls.py::test_amp_is_proven_under_autocast",
    ),
    _step(
        name="an operator that autocast left in float32 proves AMP",
        old=" if result.dtype is dtype else math.nan\n",
        new="\n",
        misleads="float32 is reported as AMP, with a proof",
        killer="test_controls.py::test_autocast_that_leaves_an_operator_in_float32_does_not_prove_amp",
    ),
    _check(
        name="AMP without a proof is not reported",
        old="        if precision.is_amp and (",
        new="        if False and (",
        misleads="as above",
        killer="test_controls.py::test_autocast_that_leaves_an_operator_in_float32_does_not_prove_amp",
    ),
    _guard(
        name="a latency does not wait for the device",
        old="        times.append(clock.time(lambda: advance(len(times))))\n",
        new=(
            "        began_at_s = clock.now_s()\n"
            "        advance(len(times))\n"
            "        times.append(clock.now_s() - began_at_s)\n"
        ),
        misleads="the time to issue a pass is reported as its latency",
        killer="test_steps.py::test_a_latency_spans_all_the_work_of_its_pass",
    ),
    _micro(
        name="half of a product is computed",
        old="    return lambda: torch.mm(a, b, out=out)\n",
        new="    return lambda: torch.mm(a[: size // 2], b, out=out[: size // 2])\n",
        misleads="the rate of products is twice what the device does",
        killer="test_micro.py::test_gemm_probe_executes_the_flops_it_reports",
    ),
    _micro(
        name="products of strict fp32 are timed under TF32",
        old="Precision.FP32)),\n",
        new="Precision.FP32) if probe.precision != 'fp32' else Precision.TF32),\n",
        misleads="the rate of TF32 is reported as that of fp32, with a proof",
        killer="test_micro.py::test_every_gemm_is_timed_with_the_switches_of_its_precision",
    ),
    _micro(
        name="the buffer that clears the cache fits in it",
        old="CACHE_BYTES = 256 * MIB\n",
        new="CACHE_BYTES = MIB\n",
        misleads="operands are found in the cache, and bandwidth is that of the cache",
        killer="test_micro.py::test_cache_flush_buffer_is_larger_than_any_cache",
    ),
    _micro(
        name="products of strict fp32 are not proven",
        old="fp32_findings = _not_ieee(hardware)",
        new="fp32_findings = ()",
        misleads="the rate of TF32 is reported as that of fp32, without a finding",
        killer="test_micro.py::test_products_that_are_not_ieee_are_flagged",
    ),
    _launcher(
        name="a process that ran out of memory tries the next batch",
        old="        if isinstance(answer, messages.CaseDone | messages.Proven) and answer.spent:\n",
        new="        if False:\n",
        misleads="as above",
        killer="test_batch_search.py::test_batch_that_ran_out_of_memory_does_not_share_its_process_with_the_next",
    ),
    _launch(
        name="memory that a step spilled to the host is not reported",
        old="        if self.spilled_bytes:\n",
        new="        if False:\n",
        misleads="the speed of the host's memory is reported as the card's",
        killer="test_batch_search.py::test_a_step_that_spills_into_host_memory_is_reported_and_does_not_fit",
    ),
    _case(
        name="a batch that spilled counts as fitting",
        old="        if recorder.spilled_bytes:\n",
        new="        if False:\n",
        misleads="a batch is called the largest that fits, although most of it is not on the card",
        killer="test_batch_search.py::test_a_step_that_spills_into_host_memory_is_reported_and_does_not_fit",
    ),
    _proof(
        name="the check of a card computes no control of fp32",
        old="control = context.control.errors if precision is Precision.FP32 else {}\n",
        new="control: dict[str, float] = {}\n",
        misleads="a card is confirmed by a proof that cannot fail on it",
        killer="test_proofs.py::test_fp32_proof_includes_a_control_that_fails",
    ),
)

TABLE = Table(mutants=MUTANTS, folder="tests/strict_cuda", least_killed=95)
