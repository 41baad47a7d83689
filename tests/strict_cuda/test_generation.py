"""A generation token by token, eagerly and as graphs over a static cache, on the strict fake."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from gpubench.measure.guards import prepare
from gpubench.measure.step import Generation
from gpubench.models import Execution, Precision, Recipe, TaskKind, WeightType
from strict_cuda.conftest import KERNEL_S
from strict_cuda.machine import Machine

NEW_TOKENS = 4
RECIPE = Recipe(
    weight_type=WeightType.FLOAT32, prompt_tokens=12, new_tokens=NEW_TOKENS, cache_tokens=12 + NEW_TOKENS
)
LAUNCH_BOUND_S = 2.5e-6
"""A kernel that runs for half of its launch time."""


def work_of(gpu, execution=Execution.GRAPH):
    asked = {"execution": execution, "task": TaskKind.INFER, "batch_size": 2}
    return gpu.work("llama_8b", precision=Precision.FP32, **asked, **RECIPE.fields)


def kernels(gpu, work) -> int:
    before = gpu.machine.kernels
    work()
    return gpu.machine.kernels - before


@pytest.mark.parametrize("execution", [Execution.EAGER, Execution.GRAPH])
def test_each_token_is_on_the_host_before_the_next_one_starts(gpu, execution):
    """Each token takes the time of its kernels, not their issue time, which is a fiftieth of that."""
    work = work_of(gpu, execution)
    generation = Generation(work)
    prompt, token = kernels(gpu, lambda: generation.start(0)), kernels(gpu, generation.go_on)
    advance = prepare(work)
    gpu.desk.clock().synchronize()
    advance(0)
    expected = accumulate([prompt, *[token] * (NEW_TOKENS - 1)])
    assert work.tokens_at_s[-1] == pytest.approx([count * KERNEL_S for count in expected], rel=0.02)


def test_a_generation_gives_the_scores_of_the_full_forward_pass(gpu):
    """Each token depends on the earlier ones: the cache is filled place by place."""
    work = work_of(gpu, Execution.EAGER)
    whole = work.batches[0][0]
    with torch.inference_mode():
        for _ in range(NEW_TOKENS - 1):
            whole = torch.cat((whole, work.model(whole).argmax(-1, keepdim=True)), dim=1)
        expected = work.model(whole).cpu()
    torch.testing.assert_close(work.step(0).cpu(), expected)


def test_replays_generate_what_eager_steps_do_batch_by_batch(gpu):
    work = work_of(gpu)
    expected = [work.step(index).cpu() for index in range(len(work.batches))]
    assert not torch.equal(expected[0], expected[1])
    advance = prepare(work)
    for index in (0, 1, 2, 3, 4, 1):
        assert torch.equal(advance(index).cpu(), expected[index % len(expected)])


def test_a_replayed_generation_takes_no_memory_and_its_graphs_share_theirs(gpu):
    work = work_of(gpu)
    work.step(0)
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    advance = prepare(work)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - reserved <= 2 * 2**21  # a segment of small blocks, and a spare one
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    advance(1)
    assert torch.cuda.max_memory_allocated() == held


def test_graph_removes_launch_overhead_from_token_times(make_gpu):
    """If kernels are shorter than their launches, a token takes the time of its kernels."""
    token_s = {}
    for execution in (Execution.EAGER, Execution.GRAPH):
        gpu = make_gpu(Machine(cost=lambda name: LAUNCH_BOUND_S))
        work = work_of(gpu, execution)
        advance = prepare(work)
        advance(0)
        at_s = work.tokens_at_s[-1]
        token_s[execution] = at_s[-1] - at_s[0]
    assert token_s[Execution.GRAPH] < 0.7 * token_s[Execution.EAGER]


def test_capture_warm_up_waits_for_pending_work_on_the_model(gpu):
    work = work_of(gpu)
    work.step(0)  # nothing has waited for its end
    work.model.words.weight.data.mul_(1)
    before = len(work.tokens_at_s)
    prepare(work)(0)  # the fake raises if the side stream reads memory that is still being written
    assert len(work.tokens_at_s) > before
