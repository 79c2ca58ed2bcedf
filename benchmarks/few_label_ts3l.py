"""SCARF (Bahri et al. 2022) and VIME (Yoon et al. 2020) as ts3l has them, as wide as tabmoco's encoder and for as many
steps of as many rows.

Numbers are standardised, gaps filled and flagged in a column of their own, categories embedded; rates and weights are
those of the papers.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from jaxtyping import Float
from torch.utils.data import DataLoader

from benchmarks.cell_matrix import cell_matrix, standardised

D_EMBEDDING = 256
N_LAYERS = 4
"""Layers of SCARF's encoder (section 4); tabmoco's has two blocks of two."""

D_TOKEN = 16
BATCH_ROWS = 256
LEARNING_RATE = 1e-3
SETTINGS = {
    "SCARF": {"corruption_rate": 0.6, "tau": 1.0, "pretraining_head_dim": D_EMBEDDING},
    "VIME": {"p_m": 0.3, "alpha1": 2.0, "alpha2": 2.0, "predictor_dim": D_EMBEDDING},
}


@dataclass(frozen=True)
class Coded:
    """Rows as ts3l wants them: codes of categories first, then numbers."""

    train: pd.DataFrame
    test: pd.DataFrame
    n_levels: tuple[int, ...]

    @property
    def codes(self) -> list[str]:
        return list(self.train.columns[: len(self.n_levels)])

    @property
    def numbers(self) -> list[str]:
        return list(self.train.columns[len(self.n_levels) :])


def embed(name: str, train: pa.Table, test: pa.Table, *, n_steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of training and test rows by an encoder pretrained on the training rows."""
    import pytorch_lightning

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    coded = code(train, test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, dataset = build(name, coded, seed)
        if name == "SCARF":
            # NOTE[DIFF]: ts3l's own loss, an array of [2N, 2N, P] numbers at a time, takes seconds a step.
            module.contrastive_loss.forward = partial(nt_xent, temperature=module.contrastive_loss.temperature)
        module.set_first_phase()
        trainer = pytorch_lightning.Trainer(
            max_steps=n_steps, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        # A batch of a single row has no variance to normalise by.
        rows = DataLoader(dataset, min(BATCH_ROWS, len(coded.train)), shuffle=True, drop_last=True)
        trainer.fit(module, rows)
    network = module.model.eval()
    return _embedded(network, coded.train), _embedded(network, coded.test)


def nt_xent(
    first: Float[torch.Tensor, "N P"], second: Float[torch.Tensor, "N P"], *, temperature: float
) -> Float[torch.Tensor, ""]:
    """ts3l's NT-Xent loss of two views of unit length, by one product of matrices."""
    views = torch.cat([first, second])
    similarity = (views @ views.T / temperature).fill_diagonal_(-torch.inf)
    partner = torch.arange(len(views)).roll(len(first))
    return torch.nn.functional.cross_entropy(similarity, partner)


def code(train: pa.Table, test: pa.Table) -> Coded:
    """Categories as codes, the rarest of many as one; numbers standardised by the training rows."""
    cells = cell_matrix(train, test)
    known, asked = standardised(cells)
    codes, numbers, n_levels = [], [], []
    for owner in np.unique(cells.owner):
        block = np.flatnonzero(cells.owner == owner)
        if cells.is_number[block[0]]:
            numbers.append((known[:, block], asked[:, block]))
        else:
            codes.append(tuple(side[:, block].argmax(1)[:, None] for side in (known, asked)))
            n_levels.append(len(block))
    sides = [np.concatenate([parts[side] for parts in (*codes, *numbers)], axis=1) for side in (0, 1)]
    frames = [pd.DataFrame(side.astype(np.float32)).rename(columns=str) for side in sides]
    return Coded(*frames, tuple(n_levels))


def build(name: str, coded: Coded, seed: int) -> tuple[Any, Any]:
    """The Lightning module and its data set."""
    from ts3l import pl_modules
    from ts3l.utils import embedding_utils, scarf_utils, vime_utils
    from ts3l.utils.backbone_utils import MLPBackboneConfig

    n_columns, n_numbers = len(coded.train.columns), len(coded.numbers)
    if coded.n_levels:
        tokens = embedding_utils.FTEmbeddingConfig(
            input_dim=n_columns, emb_dim=D_TOKEN, cont_nums=n_numbers, cat_cardinality=list(coded.n_levels)
        )
    else:
        tokens = embedding_utils.IdentityEmbeddingConfig(input_dim=n_columns)
    settings = {
        "task": "classification", "loss_fn": "CrossEntropyLoss", "metric": "accuracy_score", "output_dim": 2,
        "embedding_config": tokens, "random_seed": seed, "optim_hparams": {"lr": LEARNING_RATE, "weight_decay": 1e-5},
        "backbone_config": MLPBackboneConfig(
            input_dim=tokens.output_dim, hidden_dims=D_EMBEDDING, output_dim=D_EMBEDDING, n_hiddens=N_LAYERS,
        ),
        **SETTINGS[name],
    }  # fmt: skip
    columns = {"continuous_cols": coded.numbers, "category_cols": coded.codes}
    if name == "SCARF":
        config = scarf_utils.SCARFConfig(**settings)
        return pl_modules.SCARFLightning(config), scarf_utils.SCARFDataset(coded.train, config=config, **columns)
    config = vime_utils.VIMEConfig(num_continuous=n_numbers, cat_cardinality=list(coded.n_levels), **settings)
    return pl_modules.VIMELightning(config), vime_utils.VIMEDataset(coded.train, config=config, **columns)


@torch.inference_mode()
def _embedded(network: Any, rows: pd.DataFrame) -> np.ndarray:
    points = torch.from_numpy(rows.to_numpy(dtype=np.float32))
    return torch.cat([network.encoder(network.embedding_module(part)) for part in points.split(4_096)]).numpy()
