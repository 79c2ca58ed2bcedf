"""Losses against loops written from the papers."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize

from tabmoco.nn.losses import code_surprise, info_nce, number_surprise, per_column


def unit_vectors(n_rows: int, *, seed: int) -> torch.Tensor:
    return normalize(torch.randn(n_rows, 5, generator=torch.Generator().manual_seed(seed)), dim=1)


@given(
    n_rows=st.integers(1, 5), n_negatives=st.integers(0, 7), temperature=st.floats(0.05, 2.0), seed=st.integers(0, 99)
)
def test_info_nce_is_equation_1_of_he_et_al(n_rows, n_negatives, temperature, seed):
    query, positive, negative = (unit_vectors(n, seed=seed + i) for i, n in enumerate((n_rows, n_rows, n_negatives)))
    allowed = torch.rand(n_rows, n_negatives, generator=torch.Generator().manual_seed(seed)) < 0.6
    loss = info_nce(query, positive, negative, allowed=allowed, temperature=temperature)
    for i in range(n_rows):
        hit = math.exp(float(query[i] @ positive[i]) / temperature)
        total = hit
        for j in range(n_negatives):
            if allowed[i, j]:
                total += math.exp(float(query[i] @ negative[j]) / temperature)
        assert math.isclose(float(loss[i]), -math.log(hit / total), rel_tol=1e-4, abs_tol=1e-5)


def test_the_gradient_of_info_nce_is_that_of_its_formula():
    query, positive, negative = (unit_vectors(n, seed=n).double().requires_grad_() for n in (4, 5, 6))
    positive = positive[:4]
    allowed = torch.rand(4, 6, generator=torch.Generator().manual_seed(1)) < 0.7
    allowed[2] = False

    def loss(*vectors: torch.Tensor) -> torch.Tensor:
        return info_nce(*vectors, allowed=allowed, temperature=0.3)

    assert torch.autograd.gradcheck(loss, (query, positive, negative))


def test_info_nce_without_allowed_negatives_is_zero_with_finite_gradient():
    query = unit_vectors(3, seed=0).requires_grad_()
    loss = info_nce(
        query,
        unit_vectors(3, seed=1),
        unit_vectors(4, seed=2),
        allowed=torch.zeros(3, 4, dtype=torch.bool),
        temperature=0.1,
    )
    loss.sum().backward()
    assert torch.equal(loss, torch.zeros(3))
    assert torch.equal(query.grad, torch.zeros_like(query))


def test_info_nce_does_not_overflow_at_a_tiny_temperature():
    query = unit_vectors(3, seed=0).requires_grad_()
    loss = info_nce(
        query, -query.detach(), query.detach(), allowed=torch.ones(3, 3, dtype=torch.bool), temperature=1e-3
    )
    loss.sum().backward()
    assert torch.allclose(loss, torch.full((3,), 2000.0), rtol=1e-3)  # similarities -1 and 1, divided by 0.001
    assert torch.isfinite(query.grad).all()


def test_code_surprise_is_minus_log_softmax_of_the_given_code():
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(4, n_codes, generator=generator) for n_codes in (3, 5)]
    code = torch.tensor([[0, 4], [1, 0], [2, 2], [0, 3]])
    surprise = code_surprise(logits, code)
    assert surprise.shape == (4, 2)
    for i in range(4):
        for slot in range(2):
            scores = [math.exp(float(x)) for x in logits[slot][i]]
            assert math.isclose(float(surprise[i, slot]), -math.log(scores[code[i, slot]] / sum(scores)), rel_tol=1e-5)


def test_code_surprise_of_a_table_without_categories_has_no_slots():
    assert code_surprise([], torch.zeros(4, 0, dtype=torch.int64)).shape == (4, 0)


def test_number_surprise_is_huber_summed_over_both_scalings():
    expected = torch.tensor([[[0.0, 0.0], [1.0, -2.0]]])
    given_numbers = torch.tensor([[[0.5, 3.0], [1.0, 8.0]]])
    slow = [[0.5 * 0.5**2 + (3.0 - 0.5), 0.0 + (10.0 - 0.5)]]
    assert torch.allclose(number_surprise(expected, given_numbers), torch.tensor(slow))


def test_per_column_is_the_mean_of_a_columns_slots(any_layout):
    generator = torch.Generator().manual_seed(0)
    number = torch.rand(3, any_layout.n_numbers, generator=generator)
    code = torch.rand(3, any_layout.n_codes, generator=generator)
    columns = per_column(number, code, any_layout)
    assert columns.shape == (3, any_layout.n_columns)
    for i in range(3):
        for column in range(any_layout.n_columns):
            slots = [float(number[i, s]) for s, owner in enumerate(any_layout.number_owner) if owner == column]
            slots += [float(code[i, s]) for s, owner in enumerate(any_layout.code_owner) if owner == column]
            assert math.isclose(float(columns[i, column]), sum(slots) / len(slots), rel_tol=1e-5)
