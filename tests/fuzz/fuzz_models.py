"""Trials of damaged model directories: load one, and if it loads, use it."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from forked import Trial, main
from mutations import mutate

from tabmoco.errors import TabmocoError
from tabmoco.model import RowModel

ROWS = Path(__file__).parent.parent / "golden" / "rows.parquet"

FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pickle.find_class",
    "socket.connect", "socket.bind", "os.remove", "os.rename", "os.rmdir", "os.chmod", "code.__new__", "marshal.loads",
    "marshal.load",
)  # fmt: skip
"""Audited events that reading a model must not cause."""

watched = False


def forbid(event: str, arguments: tuple[object, ...]) -> None:
    """Turns what a model file must not be able to do into the end of the trial."""
    if watched and event in FORBIDDEN:
        os.write(2, f"{event}: {arguments!r}\n".encode())
        os._exit(99)


def use(model: RowModel) -> None:
    """Ask everything of a few rows; whatever comes back must be finite and JSON-safe."""
    rows = pq.read_table(ROWS).slice(0, 5)
    assert np.isfinite(model.embed(rows)).all(), "an embedding is not finite"
    scores = model.score(rows, fpr=0.5, explain="all")
    assert np.isfinite(scores["anomaly_score"]).all(), "a score is not finite"
    assert (np.asarray(scores["p_value"]) > 0).all() and (np.asarray(scores["p_value"]) <= 1).all(), "no p-value"
    scores.validate(full=True)
    json.dumps(scores["cells"].to_pylist(), allow_nan=False, default=str)
    found = model.search(rows, k=3)
    assert np.isfinite(found["similarity"]).all(), "a similarity is not finite"
    found.validate(full=True)
    json.dumps(model.info(), allow_nan=False)
    model.card().encode()
    assert np.isfinite(model.contributions(rows)).all(), "a contribution is not finite"


def make_trial(seed: str, golden: Path) -> Trial:
    """A trial of one damaged copy of the directory `golden`."""
    sys.addaudithook(forbid)
    warnings.simplefilter("ignore")
    use(RowModel.load(golden, device="cpu"))  # whatever is imported late is imported now

    def trial(number: int) -> tuple[str, str]:
        rng = random.Random(f"{seed}/{number}")
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            shutil.copytree(golden, folder, copy_function=os.link)
            what = mutate(folder, rng)
            try:
                return what, load_and_use(folder)
            except Exception as error:
                raise AssertionError(what) from error

    return trial


def load_and_use(folder: Path) -> str:
    global watched
    watched = True
    try:
        use(RowModel.load(folder, device="cpu"))
    except TabmocoError as error:
        message = str(error)
        assert len(message) < 2_000, f"an endless message: {message[:300]!a}"
        return f"refused: {type(error).__name__} {message[:200]}"
    finally:
        watched = False
    return "worked"


if __name__ == "__main__":
    main(make_trial)
