"""Makes the golden model: run it only for a new format version, as `python tests/golden/make_golden.py`.

It learns from rows of every kind of column and keeps beside the model the rows and what the model says of them. A model
directory of this format version must load and say the same for ever.
"""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabmoco import PretrainConfig, RowModel, pretrain
from tabmoco.config import DataConfig, EncoderConfig, IndexConfig, ObjectiveConfig, OptimizeConfig

FOLDER = Path(__file__).parent
MODEL = FOLDER / "model"
ROWS = FOLDER / "rows.parquet"
EXPECTED = FOLDER / "expected.parquet"

N_ROWS = 40
CONFIG = PretrainConfig(
    data=DataConfig(id_column="parcel", kinds={"note": "text"}, text_width=2, n_knots=16),
    encoder=EncoderConfig(d_token=4, d_block=8, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=32),
    optimize=OptimizeConfig(steps=40, batch_size=16, patience=1.0),
    index=IndexConfig(fpr=0.5),
    device="cpu",
)

SMALL_FORESTS = {
    "tabmoco.neighbors.forest.N_TREES": 4,
    "tabmoco.neighbors.forest.MIN_OUTSIDE": 50,
    "tabmoco.training.indexing.MIN_OUTSIDE_ROWS": 100,
    "tabmoco.training.pretrain.MIN_HELD_OUT_TABLE": 2,
}
"""Constants made small, so that the directory is, and rows kept out, so that every piece of evidence counts."""


def make_rows() -> pa.Table:
    """Parcels with two numbers, a category, a text, a time and a truth value, one cell in ten missing."""
    random = np.random.default_rng(7)
    size = random.normal(size=N_ROWS)
    colour = np.where(size > 0.5, "rot", np.where(size < -0.5, "blau", "grün"))
    weight = 2 * size + random.normal(scale=0.1, size=N_ROWS)
    sent = datetime.datetime(2024, 2, 28, 22, tzinfo=datetime.UTC)
    columns = {
        "size": pa.array(size),
        "weight": pa.array(weight.round(3)),
        "colour": pa.array(colour.tolist()).dictionary_encode(),
        "note": pa.array(
            [f"ein {word} Ding von {float(value):.1f} kg" for word, value in zip(colour, size, strict=True)]
        ),
        "sent": pa.array([sent + datetime.timedelta(hours=7 * row) for row in range(N_ROWS)]),
        "fragile": pa.array((size > 0).tolist()),
    }
    table = pa.table({"parcel": [f"parcel {row}" for row in range(N_ROWS)]})
    for name, cells in columns.items():
        missing = pa.array(random.random(N_ROWS) < 0.1)
        table = table.append_column(name, pa.compute.if_else(missing, pa.scalar(None, cells.type), cells))
    return table


def results(model: RowModel, rows: pa.Table) -> pa.Table:
    """What the model says of the rows: embedding, score, p-value and the most similar other row."""
    scores, found = model.score(rows, fpr=0.5), model.search(rows, k=1, same_rows=True)
    return pa.table(
        {
            "embedding": pa.array(list(model.embed(rows)), pa.list_(pa.float32(), model.d_embedding)),
            **{name: scores[name] for name in ("anomaly_score", "p_value", "nearest_row_id")},
            **{name: found[name] for name in ("neighbour_row_id", "similarity")},
        }
    )


def main() -> None:
    rows = make_rows()
    shutil.rmtree(MODEL, ignore_errors=True)
    patches = [patch(name, value) for name, value in SMALL_FORESTS.items()]
    for one in patches:
        one.start()
    pretrain(rows, CONFIG, out=MODEL)
    for one in patches:
        one.stop()
    pq.write_table(rows, ROWS)
    pq.write_table(results(RowModel.load(MODEL, device="cpu"), rows), EXPECTED)


if __name__ == "__main__":
    main()
