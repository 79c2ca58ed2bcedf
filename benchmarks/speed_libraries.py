"""How fast other libraries pretrain on columns of numbers: pytorch-tabnet, pytorch-widedeep and pytorch-tabular.

Each library's own trainer runs, once with its usual network and once with one as large as tabmoco's, for one pass over
the rows and for three; what the two passes more take is their speed, so that building and first steps do not count.

They ask for older packages than tabmoco's other benchmarks, so they need an environment of their own, with tabmoco in
it:

    pip install torch==2.13.0
    pip install "numpy<2" "pyarrow<20" "transformers<4.50" pytorch-tabnet pytorch-tabular pytorch-widedeep ts3l .

pytorch-widedeep imports torchvision, which must be built for the same device as torch.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from time import process_time

import numpy as np
import pandas as pd
import pyarrow as pa
from torch import nn

BATCH_ROWS = 256
PASSES = (1, 1, 3)
"""The first is for whatever a library imports and compiles."""

USUAL, LIKE = "", ", of that size"
"""Whose size the network has: the library's own, or tabmoco's."""


def tabnet(numbers: pd.DataFrame, size: str) -> Callable[[int], nn.Module]:
    """TabNetPretrainer (Arik and Pfister 2021)."""
    from pytorch_tabnet.pretraining import TabNetPretrainer

    widths = {} if size == USUAL else {"n_d": 69, "n_a": 69}
    cells = numbers.to_numpy()

    def fit(n_passes: int) -> nn.Module:
        pretrainer = TabNetPretrainer(verbose=0, device_name="cpu", **widths)
        pretrainer.fit(
            cells, max_epochs=n_passes, patience=0, batch_size=BATCH_ROWS, virtual_batch_size=BATCH_ROWS // 2
        )
        return pretrainer.network

    return fit


def widedeep(numbers: pd.DataFrame, size: str) -> Callable[[int], nn.Module]:
    """ContrastiveDenoisingTrainer over a small attention MLP."""
    from pytorch_widedeep.models import ContextAttentionMLP
    from pytorch_widedeep.preprocessing import TabPreprocessor
    from pytorch_widedeep.self_supervised_training import ContrastiveDenoisingTrainer

    names = list(numbers.columns)
    preprocessor = TabPreprocessor(continuous_cols=names, cols_to_scale=names, with_attention=True)
    cells = preprocessor.fit_transform(numbers)
    widths = {} if size == USUAL else {"input_dim": 77}

    def fit(n_passes: int) -> nn.Module:
        model = ContextAttentionMLP(column_idx=preprocessor.column_idx, continuous_cols=names, **widths)
        trainer = ContrastiveDenoisingTrainer(
            model=model, preprocessor=preprocessor, verbose=0, device="cpu", num_workers=0
        )
        trainer.pretrain(cells, n_epochs=n_passes, batch_size=BATCH_ROWS)
        return trainer.cd_model

    return fit


def tabular(numbers: pd.DataFrame, size: str) -> Callable[[int], nn.Module]:
    """pytorch-tabular's denoising autoencoder over four layers, its swapped cells as they are."""
    from pytorch_tabular import TabularModel
    from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
    from pytorch_tabular.models import CategoryEmbeddingModelConfig
    from pytorch_tabular.ssl_models import DenoisingAutoEncoderConfig

    width = 256 if size == USUAL else 312

    def fit(n_passes: int) -> nn.Module:
        model = TabularModel(
            data_config=DataConfig(target=None, continuous_cols=list(numbers.columns), validation_split=0.01),
            model_config=DenoisingAutoEncoderConfig(
                encoder_config=CategoryEmbeddingModelConfig(task="backbone", layers="-".join(4 * [str(width)])),
                decoder_config=CategoryEmbeddingModelConfig(task="backbone", layers=str(width)),
            ),
            optimizer_config=OptimizerConfig(),
            trainer_config=TrainerConfig(
                batch_size=BATCH_ROWS, max_epochs=n_passes, accelerator="cpu", checkpoints=None, load_best=False,
                early_stopping=None, progress_bar="none", trainer_kwargs={"enable_model_summary": False},
            ),
            verbose=False,
        )  # fmt: skip
        model.pretrain(train=numbers)
        return model.model

    return fit


LIBRARIES = {
    "pytorch-tabnet TabNet": ("pytorch_tabnet", tabnet),
    "pytorch-widedeep contrastive": ("pytorch_widedeep", widedeep),
    "pytorch-tabular DAE": ("pytorch_tabular", tabular),
}
"""The package that a name needs, and what prepares its training."""


def rate(name: str, size: str, table: pa.Table) -> dict[str, float]:
    """Rows a second and trained parameters."""
    for logger in ("pytorch_tabular", "pytorch_lightning", "lightning"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    numbers = table.to_pandas().astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = LIBRARIES[name][1](numbers, size)
        seconds = []
        for n_passes in PASSES:
            start = process_time()
            network = fit(n_passes)
            seconds.append(process_time() - start)
    n_rows = (PASSES[-1] - PASSES[-2]) * len(numbers)
    return {
        "rows_per_second": n_rows / max(seconds[-1] - seconds[-2], 1e-9),
        "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
    }
