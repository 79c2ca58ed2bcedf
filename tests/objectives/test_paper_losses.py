"""Every objective's loss against plain loops written from its paper."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tabmoco.config import ObjectiveConfig, PretrainConfig
from tabmoco.corruption import View
from tabmoco.objectives import OBJECTIVES, Pretext, Step, build_pretext
from tabmoco.objectives.dino import TEMPERATURE
from tabmoco.objectives.masked_cells import INTACT_WEIGHT
from tabmoco.tables.cells import CellBatch

N_ROWS = 10

N_TABLE_ROWS = 60

TAU = 0.2


def cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.tolist(), b.tolist()
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def contrast(query: Tensor, positive: Tensor, negatives: list[Tensor]) -> float:
    """`−log(e^{q·k₊/τ} / (e^{q·k₊/τ} + Σ e^{q·k/τ}))`."""
    hit = math.exp(cosine(query, positive) / TAU)
    return -math.log(hit / (hit + sum(math.exp(cosine(query, k) / TAU) for k in negatives)))


def projections(pretext: Pretext, name: str, view: View) -> Tensor:
    """The query encoder's, before any unit length that the paper does not have."""
    return pretext.objectives[name].head(pretext.encoder(view.cells, view.masked))


def predictions(pretext: Pretext, name: str, view: View) -> Tensor:
    return pretext.objectives[name].predictor(projections(pretext, name, view))


def keys(pretext: Pretext, name: str, view: View) -> Tensor:
    encoder, head = pretext.objectives[name].target.module
    return head(encoder(view.cells, view.masked))


def moco(pretext: Pretext, step: Step) -> float:
    """He et al. 2020, algorithm 1, with outside rows as instances of their own."""
    query, key = projections(pretext, "moco", step.query), keys(pretext, "moco", step.key)
    none = torch.zeros_like(step.query.masked[: len(step.outside)])
    outside = View(step.outside, none, none, none[:, 0])
    outside_query, outside_key = projections(pretext, "moco", outside), keys(pretext, "moco", outside)
    queue = pretext.objectives["moco"].queue
    queued = [k for k, filled in zip(queue.key, queue.filled, strict=True) if filled]
    total = sum(contrast(query[i], key[i], [*queued, *outside_key]) for i in range(N_ROWS))
    total += sum(contrast(q, k, [*queued, *key]) for q, k in zip(outside_query, outside_key, strict=True))
    return total / N_ROWS


def moco_v3(pretext: Pretext, step: Step) -> float:
    """Chen, Xie, He 2021, algorithm 1: `ctr(q1, k2) + ctr(q2, k1)`, each with its factor of 2τ."""
    q1, q2 = (predictions(pretext, "moco_v3", view) for view in (step.query, step.key))
    k1, k2 = (keys(pretext, "moco_v3", view) for view in (step.query, step.key))

    def ctr(q: Tensor, k: Tensor) -> float:
        losses = [contrast(q[i], k[i], [k[j] for j in range(N_ROWS) if j != i]) for i in range(N_ROWS)]
        return 2 * TAU * sum(losses) / N_ROWS

    return ctr(q1, k2) + ctr(q2, k1)


def simclr(pretext: Pretext, step: Step) -> float:
    """Chen et al. 2020, equation 1: `1/2N Σ (ℓ(2k−1, 2k) + ℓ(2k, 2k−1))`."""
    first, second = (projections(pretext, "simclr", view) for view in (step.query, step.key))
    z = [row for pair in zip(first, second, strict=True) for row in pair]

    def ell(i: int, j: int) -> float:
        return contrast(z[i], z[j], [z[k] for k in range(2 * N_ROWS) if k not in (i, j)])

    return sum(ell(2 * k, 2 * k + 1) + ell(2 * k + 1, 2 * k) for k in range(N_ROWS)) / (2 * N_ROWS)


def byol(pretext: Pretext, step: Step) -> float:
    """Grill et al. 2020, equation 2: `2 − 2·⟨q, z′⟩/(‖q‖·‖z′‖)`, and the same with the views exchanged."""
    q1, q2 = (predictions(pretext, "byol", view) for view in (step.query, step.key))
    z1, z2 = (keys(pretext, "byol", view) for view in (step.query, step.key))
    return sum(4 - 2 * cosine(q1[i], z2[i]) - 2 * cosine(q2[i], z1[i]) for i in range(N_ROWS)) / N_ROWS


def dino(pretext: Pretext, step: Step) -> float:
    """Caron et al. 2021, equation 3: `Σ H(Pt(x), Ps(x′))` over both global views x and all other views x′."""
    objective = pretext.objectives["dino"]
    views = [step.query, step.key, *step.local]
    own = [projections(pretext, "dino", view) for view in views]
    targets = [keys(pretext, "dino", view) for view in views[:2]]

    def shares(logits: list[float], temperature: float) -> list[float]:
        powers = [math.exp(logit / temperature) for logit in logits]
        return [power / sum(powers) for power in powers]

    total, n_terms = 0.0, 0
    for t in range(2):
        for s in range(len(views)):
            if s == t:
                continue
            n_terms += 1
            for i in range(N_ROWS):
                centred = (targets[t][i] - objective.centre).tolist()
                taught = shares(centred, objective.config.target_temperature)
                learned = shares(own[s][i].tolist(), TEMPERATURE)
                total -= sum(p * math.log(q) for p, q in zip(taught, learned, strict=True))
    return total / n_terms / N_ROWS


def memory_bank(pretext: Pretext, step: Step) -> float:
    """InfoNCE against the row's slot, all slots of other rows as negatives."""
    query, slot = projections(pretext, "memory_bank", step.query), pretext.objectives["memory_bank"].bank.slot
    others = [[slot[j] for j in range(N_TABLE_ROWS) if j != step.row[i]] for i in range(N_ROWS)]
    return sum(contrast(query[i], slot[step.row[i]], others[i]) for i in range(N_ROWS)) / N_ROWS


def masked_cells(pretext: Pretext, step: Step) -> float:
    """Yoon et al. 2020, section 4.1: rebuilding, and half a weight for which cells were changed."""
    objective, layout = pretext.objectives["masked_cells"], pretext.objectives["masked_cells"].layout
    embedding = pretext.encoder(step.query.cells, step.query.masked)
    number, logits = objective.decoder(embedding)
    given = pretext.encoder.columns.number.scalings(step.clean.number)
    detected = objective.detector(embedding).sigmoid().tolist()
    total = 0.0
    for i in range(N_ROWS):
        for column in range(layout.n_columns):
            numbers = [s for s, owner in enumerate(layout.number_owner) if owner == column]
            codes = [s for s, owner in enumerate(layout.code_owner) if owner == column]
            swapped, hidden = bool(step.query.corrupted[i, column]), bool(step.query.masked[i, column])
            if not step.clean.missing[i, column]:
                surprise = []
                for s in numbers:
                    gaps = [abs(float(number[i, s, v] - given[i, s, v])) for v in range(2)]
                    surprise.append(sum(0.5 * gap**2 if gap < 1 else gap - 0.5 for gap in gaps))
                surprise += [-float(logits[s][i].log_softmax(0)[step.clean.code[i, s]]) for s in codes]
                total += (1.0 if swapped or hidden else INTACT_WEIGHT) * sum(surprise) / len(surprise)
            if not hidden:
                cells, clean = step.query.cells, step.clean
                changed = bool(cells.missing[i, column] != clean.missing[i, column])
                changed |= any(cells.number[i, s] != clean.number[i, s] for s in numbers)
                changed |= any(cells.code[i, s] != clean.code[i, s] for s in codes)
                total -= 0.5 * math.log(detected[i][column] if changed else 1 - detected[i][column])
    return total / (N_ROWS * layout.n_columns)


SLOW: dict[str, Callable[[Pretext, Step], float]] = {
    "moco": moco,
    "moco_v3": moco_v3,
    "simclr": simclr,
    "byol": byol,
    "dino": dino,
    "memory_bank": memory_bank,
    "masked_cells": masked_cells,
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_is_that_of_its_paper(name, build_encoder, layout, draw_cells, make_step):
    config = PretrainConfig(
        objective=ObjectiveConfig(
            weights={name: 1.0},
            head="linear",
            temperature=TAU,
            queue_size=N_TABLE_ROWS,
            d_projection=6,
            n_prototypes=12,
            detection_weight=0.5,
        )
    )
    torch.manual_seed(5)
    pretext = build_pretext(build_encoder(layout), layout, config, n_rows=N_TABLE_ROWS)

    def step_of(seed: int) -> Step:
        cells = draw_cells(layout, N_ROWS, seed=seed)
        rates = {"query_swap": (0.3, 0.9), "mask": (0.2, 0.4), "key_swap": (0.1, 0.3), "outside_rate": (0.9, 0.9)}
        step = make_step(layout, cells, seed=seed, n_local_views=pretext.n_local_views, **rates)
        assert not torch.isin(step.outside.content_hash(), step.content).any()
        return dataclasses.replace(step, row=step.row + seed * N_ROWS)

    with torch.no_grad():
        pretext(step_of(1))
        for p in pretext.encoder.parameters():  # a step that tells the encoder and the target apart
            p.add_(0.1 * torch.randn_like(p))
        pretext.after_step(0.0)
        step = step_of(2)
        assert math.isclose(float(pretext(step)["loss"]), SLOW[name](pretext, step), rel_tol=1e-4)


@pytest.mark.parametrize("name", ["moco_v3", "simclr", "memory_bank"])
def test_exact_duplicates_of_a_row_are_never_its_negatives(name, build_encoder, layout, draw_cells, make_step):
    config = PretrainConfig(objective=ObjectiveConfig(weights={name: 1.0}, temperature=TAU))
    torch.manual_seed(5)
    pretext = build_pretext(build_encoder(layout), layout, config, n_rows=4)
    same = CellBatch.cat([draw_cells(layout, 1)] * 4)
    step = make_step(layout, same)
    with torch.no_grad():
        pretext(step)
        pretext.after_step(0.0)  # now the bank knows what is in its slots
        assert float(pretext(step)["loss"]) == 0.0
        other = make_step(layout, CellBatch.cat([same[:3], draw_cells(layout, 1, seed=1)]))
        assert float(pretext(other)["loss"]) > 0.0
