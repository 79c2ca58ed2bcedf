"""Rows a second that pretraining takes in, tabmoco's and that of other libraries, on the same columns of numbers.

Each library's own trainer runs, on one thread; what it does before its first step is not counted. ts3l is driven here,
others by `benchmarks.speed_libraries`.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
from torch import nn

from benchmarks import few_label_ts3l
from benchmarks.speed_libraries import BATCH_ROWS, LIBRARIES, LIKE, USUAL, rate
from benchmarks.speed_stages import STAGES, Prepared, stages
from tabmoco.config import PretrainConfig
from tabmoco.tables.source import open_table

LIKE_TS3L = (
    'encoder.backbone="mlp"', "encoder.n_blocks=4", 'encoder.number_embedding="linear"', "encoder.d_token=2",
    'objective.head="mlp"', "objective.d_projection=256", "objective.weights={moco=1.0}",
)  # fmt: skip
"""Settings with which tabmoco's network is like that of ts3l: four hidden layers over the bare numbers, and a head."""

TS3L = {"ts3l SCARF": ("SCARF", 8), "ts3l VIME": ("VIME", 1)}
"""Name of the method, and the share of steps that it is given, one in so many: a step of ts3l's SCARF takes seconds."""

RIVALS = (*TS3L, *(name + size for name in LIBRARIES for size in (LIKE, USUAL)))

TARGETS = {
    "ts3l SCARF": 100.0,
    f"pytorch-widedeep contrastive{LIKE}": 5.0,
    f"pytorch-tabnet TabNet{LIKE}": 3.0,
}
"""How many times as fast tabmoco of equal size should be."""

OWN = "tabmoco, by default"
OWN_LIKE = "tabmoco, of that size"


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def rates(table: pa.Table, config: PretrainConfig, *, n_steps: int) -> dict[str, dict[str, float]]:
    """Rows a second and the number of trained parameters of each, once."""
    found = {}
    for name, own in {OWN: config, OWN_LIKE: config.override(LIKE_TS3L)}.items():
        found[name] = _tabmoco(table, own, n_steps)
    for name, (method, every) in TS3L.items():
        if installed("ts3l"):
            found[name] = _ts3l(method, table, max(1, n_steps // every))
    for name, (package, _) in LIBRARIES.items():
        for size in (LIKE, USUAL) if installed(package) else ():
            found[name + size] = rate(name, size, table.slice(0, n_steps * BATCH_ROWS))
    return found


def _tabmoco(table: pa.Table, config: PretrainConfig, n_steps: int) -> dict[str, float]:
    prepared = Prepared.of(open_table(table), config)
    run = stages(prepared)[STAGES[-1]]
    run(2)
    start = process_time()
    run(n_steps)
    seconds = process_time() - start
    return {"rows_per_second": n_steps * config.optimize.batch_size / seconds, "parameters": _size(prepared.pretext)}


def _ts3l(method: str, table: pa.Table, n_steps: int) -> dict[str, float]:
    """ts3l as it is, its own loss included; batches of the size that benchmarks.few_label has."""
    import pytorch_lightning
    from torch.utils.data import DataLoader

    ended: list[float] = []

    class Clock(pytorch_lightning.Callback):
        def on_train_batch_end(self, *arguments: Any) -> None:
            ended.append(process_time())

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    coded = few_label_ts3l.code(table, table.slice(0, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, dataset = few_label_ts3l.build(method, coded, 0)
        module.set_first_phase()
        trainer = pytorch_lightning.Trainer(
            max_steps=n_steps + 1, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[Clock()],
        )  # fmt: skip
        n_rows = min(few_label_ts3l.BATCH_ROWS, len(coded.train))
        trainer.fit(module, DataLoader(dataset, n_rows, shuffle=True, drop_last=True))
    seconds = float(np.diff(ended).mean())
    return {"rows_per_second": n_rows / seconds, "parameters": _size(module)}


def _size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
