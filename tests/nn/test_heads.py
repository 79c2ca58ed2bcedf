"""Projection heads and the cell decoder."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from tabmoco.nn.heads import CellDecoder, Predictor, ProjectionHead, Projector, PrototypeHead


@pytest.mark.parametrize(("kind", "n_linear", "width"), [("none", 0, 8), ("linear", 1, 5), ("mlp", 2, 5)])
def test_a_projection_has_unit_length_and_the_heads_width(kind, n_linear, width):
    head = ProjectionHead(8, 5, kind)
    projection = head(10 * torch.randn(4, 8))
    assert projection.shape == (4, width)
    assert head.d_projection == width
    assert torch.allclose(projection.norm(dim=1), torch.ones(4), atol=1e-5)
    assert sum(isinstance(m, nn.Linear) for m in head.modules()) == n_linear


def test_no_head_is_the_embeddings_direction():
    embedding = torch.randn(4, 8)
    assert torch.equal(ProjectionHead(8, 5, "none")(embedding), normalize(embedding, dim=1))


def test_the_zero_embedding_projects_to_something_finite():
    assert torch.isfinite(ProjectionHead(8, 5, "none")(torch.zeros(1, 8))).all()


def test_the_decoder_speaks_of_every_slot(any_layout):
    number, logits = CellDecoder(8, 16, any_layout)(torch.randn(3, 8))
    assert number.shape == (3, any_layout.n_numbers, 2)
    assert [logit.shape for logit in logits] == [(3, n_codes) for n_codes in any_layout.cardinalities]


@pytest.mark.parametrize("kind", ["none", "linear", "mlp"])
def test_half_precision_stops_at_the_heads(layout, kind):
    embedding = torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        number, logits = CellDecoder(8, 16, layout)(embedding)
        projection = ProjectionHead(8, 5, kind)(embedding)
    assert {x.dtype for x in (number, *logits, projection)} == {torch.float32}


def test_a_projector_is_encoder_and_head(build_encoder, layout, draw_cells):
    encoder, head, cells = build_encoder(layout), ProjectionHead(8, 5, "mlp"), draw_cells(layout, 6)
    masked = torch.zeros(cells.missing.shape, dtype=torch.bool)
    masked[:, 0] = True
    projector = Projector(encoder, head)
    assert torch.equal(projector(cells), head(encoder(cells)))
    assert torch.equal(projector(cells, masked), head(encoder(cells, masked)))
    assert not torch.equal(projector(cells), projector(cells, masked))


def test_a_prediction_has_unit_length_and_sees_one_row_at_a_time():
    predictor, projection = Predictor(5, 16), torch.randn(7, 5)
    prediction = predictor(projection)
    assert prediction.shape == (7, 5)
    assert torch.allclose(prediction.norm(dim=1), torch.ones(7), atol=1e-5)
    assert torch.allclose(predictor(projection[:1]), prediction[:1], atol=1e-6)


def test_prototypes_are_met_at_their_cosine():
    head, embedding = PrototypeHead(8, 5, 3), torch.randn(4, 8)
    projection = head.project.layers(embedding)
    for i in range(4):
        for j in range(3):
            cosine = torch.cosine_similarity(projection[i], head.prototype[j], dim=0)
            assert torch.allclose(head(embedding)[i, j], cosine, atol=1e-5)


def test_half_precision_stops_at_predictor_and_prototypes():
    with torch.autocast("cpu", torch.bfloat16):
        outputs = Predictor(8, 16)(torch.randn(3, 8)), PrototypeHead(8, 5, 3)(torch.randn(3, 8))
    assert {x.dtype for x in outputs} == {torch.float32}
