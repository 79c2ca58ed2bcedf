"""Two processes that each have half of every batch train like one process that has it all."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tabmoco import ranks
from tabmoco.config import ObjectiveConfig, PretrainConfig
from tabmoco.objectives import OBJECTIVES, Pretext, Step, build_pretext

N_RANKS = 2

N_ROWS = 16

N_STEPS = 2

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)

CASES: dict[str, dict[str, Any]] = {
    **{name: {"weights": {name: 1.0}} for name in OBJECTIVES},
    "detection": {"weights": {"masked_cells": 1.0}, "detection_weight": 0.5},
    "random replacement": {"weights": {"moco": 1.0}, "queue_replacement": "random"},
    "all at once": {"weights": dict.fromkeys(OBJECTIVES, 0.5)},
    "moco, batch norm": {"weights": {"moco": 1.0}, "norm": "batch", "outside_rows": 1.0},
    "moco, nothing shuffled": {"weights": {"moco": 1.0}, "norm": "batch", "outside_rows": 1.0, "shuffle_keys": False},
    "moco_v3, batch norm": {"weights": {"moco_v3": 1.0}, "norm": "batch"},
    "byol, batch norm": {"weights": {"byol": 1.0}, "norm": "batch"},
}


def train(pretext: Pretext, module: torch.nn.Module, steps: list[Step]) -> dict[str, Any]:
    """Loss of each step, the gradient of the first and the state after the last."""
    optimizer = torch.optim.SGD([p for p in pretext.parameters() if p.requires_grad], lr=0.1)
    losses, gradient = [], {}
    for number, step in enumerate(steps):
        torch.manual_seed(number)
        loss = module(step)["loss"]
        optimizer.zero_grad()
        loss.backward()
        gradient = gradient or {path: p.grad.clone() for path, p in pretext.named_parameters() if p.grad is not None}
        optimizer.step()
        pretext.after_step(0.5)
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "gradient": gradient, "state": pretext.state_dict()}


def work(rank: int, folder: Path, cases: dict[str, tuple[Pretext, list[list[Step]]]]) -> None:
    """One rank: all cases, one after the other."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=N_RANKS)
    results: dict[str, Any] = {}
    for name, (pretext, steps) in cases.items():
        pretext = copy.deepcopy(pretext)  # what was handed over lies in memory that all ranks share
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # the argument is about to be renamed
            module = DistributedDataParallel(pretext, broadcast_buffers=False)
        results[name] = train(pretext, module, steps[rank])
    mine = torch.arange(6.0).reshape(3, 2) + 10 * rank
    results["gather"] = {
        "who": (ranks.rank(), ranks.n_ranks()),
        "number": ranks.gather(mine),
        "bool": ranks.gather(mine > 3),
        "empty": ranks.gather(mine[:, :0]),
        "from_first": ranks.from_first(mine.clone()),
    }
    torch.save(results, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, build_encoder, layout, draw_cells, make_step) -> list[dict[str, Any]]:
    """What one process has, then what each rank has."""
    folder = tmp_path_factory.mktemp("ranks")
    cases, alone = {}, {}
    for name, given in CASES.items():
        settings = {"queue_size": 40, "d_projection": 6, "n_prototypes": 12, "temperature": 0.2, **given}
        outside_rows = settings.pop("outside_rows", 0.25)
        encoder = build_encoder(layout, norm=settings.pop("norm", "layer"))
        torch.manual_seed(5)
        config = PretrainConfig(objective=ObjectiveConfig(**settings))
        pretext = build_pretext(encoder, layout, config, n_rows=N_STEPS * N_ROWS).train()
        steps = []
        for number in range(N_STEPS):
            cells = draw_cells(layout, N_ROWS, seed=number)
            views = {"n_local_views": pretext.n_local_views, "outside_rows": outside_rows}
            step = make_step(layout, cells, seed=number, **views)
            steps.append(dataclasses.replace(step, row=step.row + number * N_ROWS))
        n_rows, n_outside = N_ROWS // N_RANKS, len(steps[0].outside) // N_RANKS
        shares = [
            [
                step.take(slice(r * n_rows, (r + 1) * n_rows), slice(r * n_outside, (r + 1) * n_outside))
                for step in steps
            ]
            for r in range(N_RANKS)
        ]
        cases[name] = (copy.deepcopy(pretext), shares)
        alone[name] = train(pretext, pretext, steps)
    torch.multiprocessing.spawn(work, args=(folder, cases), nprocs=N_RANKS)
    return [alone, *(torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(N_RANKS))]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_equal_one_process(outcome, name):
    alone, *apart = (results[name] for results in outcome)
    assert torch.allclose(sum(result["losses"] for result in apart) / N_RANKS, alone["losses"], atol=1e-6, rtol=1e-6)
    for result in apart:
        assert result["gradient"].keys() == alone["gradient"].keys()
        for path, gradient in alone["gradient"].items():
            assert torch.allclose(result["gradient"][path], gradient, atol=1e-6, rtol=1e-5), path
        for path, tensor in alone["state"].items():
            assert torch.allclose(result["state"][path], tensor, atol=1e-6, rtol=1e-5), path


@pytest.mark.parametrize("name", CASES)
def test_ranks_hold_the_very_same_state(outcome, name):
    first, second = (results[name]["state"] for results in outcome[1:])
    assert all(torch.equal(tensor, second[path]) for path, tensor in first.items())


def test_rows_of_all_ranks_are_gathered_in_their_order(outcome):
    rows = torch.arange(6.0).reshape(3, 2)
    for rank, results in enumerate(outcome[1:]):
        found = results["gather"]
        assert found["who"] == (rank, N_RANKS)
        assert torch.equal(found["number"], torch.cat([rows, rows + 10]))
        assert torch.equal(found["bool"], torch.cat([rows > 3, rows + 10 > 3]))
        assert found["empty"].shape == (6, 0)
        assert torch.equal(found["from_first"], rows)


def test_a_process_alone_has_nobody_to_ask():
    rows = torch.randn(3, 2, requires_grad=True)
    assert (ranks.rank(), ranks.n_ranks()) == (0, 1)
    assert torch.equal(ranks.gather(rows), rows) and not ranks.gather(rows).requires_grad
    assert ranks.gather_with_gradient(rows) is ranks.from_first(rows) is rows
