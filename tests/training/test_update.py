"""Learning on from new rows: what stays, what grows, what the index and the calibration hold, and what is refused."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import tabmoco
import tabmoco.training.update as module
from tabmoco.config import DataConfig, EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import Interrupted, ModelFileError, SchemaError, TableError, TabmocoError
from tabmoco.model import RowModel
from tabmoco.neighbors.reference import SEARCH_SPACE
from tabmoco.objectives import OBJECTIVES
from tabmoco.objectives.masked_cells import cell_surprise
from tabmoco.tables.encoders import CategoryEncoder
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.profiles import ValueCounter
from tabmoco.tables.source import open_table
from tabmoco.training.pretrain import pretrain
from tabmoco.training.update import neighbours_kept, update
from tabmoco.training.update_growth import code_origin, grown_pretext

pytestmark = pytest.mark.usefixtures("small_forests")

N_OLD, N_NEW = 520, 200  # 52 and 20 kept out

SMALL = PretrainConfig(
    data=DataConfig(id_column="order"),
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=300),
    optimize=OptimizeConfig(steps=40, batch_size=64, patience=1.0),
    device="cpu",
)


def make_table(
    n_rows: int, seed: int, *, first: int = 0, shift: float = 0.0, more: tuple[str, ...] = ()
) -> pd.DataFrame:
    """Parcels; `more` are further colours, each of every tenth parcel."""
    generator = np.random.default_rng(seed)
    size = generator.normal(size=n_rows) + shift
    colour = np.where(size > 0.5, "red", np.where(size < -0.5, "blue", "green")).astype(object)
    for number, name in enumerate(more):
        colour[np.arange(n_rows) % 10 == number] = name
    return pd.DataFrame(
        {
            "order": [f"order {first + row:05d}" for row in range(n_rows)],
            "size": size,
            "weight": 2 * size + generator.normal(scale=0.1, size=n_rows),
            "colour": colour,
            "fragile": generator.random(n_rows) < 0.3,
        }
    )


OLD = make_table(N_OLD, 0)
NEW = make_table(N_NEW, 1, first=N_OLD, shift=1.0, more=("pink", "gold"))


@pytest.fixture(scope="module")
def model() -> RowModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.neighbors.forest.N_TREES", 8)
        patch.setattr("tabmoco.neighbors.forest.MIN_OUTSIDE", 200)
        patch.setattr("tabmoco.training.indexing.MIN_OUTSIDE_ROWS", 400)
        return pretrain(OLD, SMALL)


@pytest.fixture(scope="module")
def updated(model) -> RowModel:
    return update(model, NEW, steps=10)


def change(**groups: dict[str, object]) -> PretrainConfig:
    parts = {name: dataclasses.replace(getattr(SMALL, name), **values) for name, values in groups.items()}
    return dataclasses.replace(SMALL, **parts)


def index_of(model: RowModel) -> np.ndarray:
    return model.reference.indexes[SEARCH_SPACE].rows


@torch.inference_mode()
def surprise(model: RowModel, table: pd.DataFrame) -> float:
    """How far the cells of a table lie from what the decoder makes of their rows."""
    cells = model.preprocessor.encode(open_table(table)).cells
    found = cell_surprise(model.encoder, model.decoder, model.encoder(cells), cells, model.preprocessor.layout)
    return float(found.mean())


def timeless(record: dict) -> dict:
    updates = [{name: value for name, value in one.items() if name != "date"} for one in record["updates"]]
    return {**record, "updates": updates}


# ---------------------------------------------------------------- growth


def test_a_category_gets_a_code_behind_the_old_ones():
    counts = ValueCounter()
    counts.counts.update({"red": 9, "pink": 5, "gold": 5, "rare": 1, "seldom": 3})
    old = CategoryEncoder("colour", ("blue", "red", "seldom", "never"), 2)
    grown = old.grown(counts, max_categories=1_000, min_count=2)
    assert grown.values == ("blue", "red", "gold", "pink", "seldom", "never", "rare") and grown.n_coded == 5
    full = old.grown(counts, max_categories=3, min_count=2)
    assert full.values == ("blue", "red", "gold") and full.n_coded == 3
    assert old.grown(ValueCounter(), max_categories=1_000, min_count=2) == old


def test_numbers_and_old_categories_encode_as_before(model):
    grown = model.preprocessor.grown(open_table(NEW))
    before, after = (preprocessor.encode(open_table(OLD)).cells for preprocessor in (model.preprocessor, grown))
    assert torch.equal(before.number, after.number) and torch.equal(before.code, after.code)
    assert np.array_equal(grown.knots, model.preprocessor.knots)


def test_new_codes_start_as_the_unknown_one():
    assert code_origin([3, 2], [5, 2]).tolist() == [0, 1, 2, 0, 0, 3, 4]
    assert code_origin([3], [3]).tolist() == [0, 1, 2] and len(code_origin([], [])) == 0


def test_a_grown_network_says_what_the_old_one_said(model):
    preprocessor = model.preprocessor.grown(open_table(NEW))
    pretext = grown_pretext(model, preprocessor, model.config, n_rows=N_OLD + N_NEW)
    old = model.pretext.state_dict()
    grown = {name: tensor for name, tensor in pretext.state_dict().items() if tensor.shape != old[name].shape}
    assert len(grown) == 4  # tokens of encoder and target, weight and bias of the decoder's logits
    n_old = sum(model.preprocessor.layout.cardinalities)
    slots = model.preprocessor.layout.cardinalities[0]
    for name, tensor in grown.items():
        assert len(tensor) == n_old + 2
        assert torch.equal(torch.cat([tensor[:slots], tensor[slots + 2 :]]), old[name]), name
        assert torch.equal(tensor[slots], old[name][0]) and torch.equal(tensor[slots + 1], old[name][0])
    for name, tensor in pretext.state_dict().items():
        assert name in grown or torch.equal(tensor, old[name]), name
    same = RowModel(model.config, preprocessor, pretext)
    np.testing.assert_array_equal(same.embed(OLD), model.embed(OLD))
    with pytest.warns(UserWarning, match="never seen"):
        before = copy.deepcopy(model).embed(NEW)
    np.testing.assert_array_equal(same.embed(NEW), before)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_learns_on(objective):
    config = change(
        objective={"weights": {objective: 1.0}, "queue_size": 50, "n_prototypes": 8},
        optimize={"steps": 1, "batch_size": 16},
        encoder={"dropout": 0.1},
    )
    small = pretrain(OLD[:60], config)
    after = update(small, make_table(40, 3, more=("pink",)), steps=2)
    assert after.pretext.objectives.keys() == {objective} and after.pretext.weights == {objective: 1.0}
    assert not np.array_equal(after.embed(OLD[:5]), small.embed(OLD[:5]))


# ---------------------------------------------------------------- learning


def test_an_update_is_a_function_of_the_seed_and_leaves_the_model_alone(model, updated):
    before = {name: tensor.clone() for name, tensor in model.pretext.state_dict().items()}
    again, other = update(model, NEW, steps=10), update(model, NEW, steps=10, seed=5)
    for name, tensor in again.pretext.state_dict().items():
        assert torch.equal(tensor, updated.pretext.state_dict()[name]), name
    assert timeless(again.record) == timeless(updated.record)
    np.testing.assert_array_equal(again.reference.calibration.scores, updated.reference.calibration.scores)
    np.testing.assert_array_equal(index_of(again), index_of(updated))
    assert not np.array_equal(other.embed(OLD), again.embed(OLD))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.pretext.state_dict().items())
    assert model.preprocessor.layout.cardinalities == (4, 3) and "updates" not in model.record


def test_old_rows_stay_and_new_ones_are_learned(model, monkeypatch):
    settings = {"steps": 40}
    held = update(model, NEW, **settings)
    monkeypatch.setattr(module, "ANCHOR_WEIGHT", 1e-9)
    loose = update(model, NEW, **settings)
    before = model.embed(OLD)
    moved = [np.linalg.norm(after.embed(OLD) - before) for after in (held, loose)]
    assert 0 < moved[0] < 0.5 * moved[1]
    kept = [after.record["updates"][0]["figures"]["neighbours_kept"] for after in (held, loose)]
    assert kept[0] > 0.9 and kept[0] > kept[1]
    fresh = make_table(200, 7, shift=1.0, more=("pink", "gold"))
    untrained = update(model, NEW, steps=0)
    assert surprise(held, fresh) < 0.97 * surprise(untrained, fresh)


def test_new_categories_part(updated):
    encoder = updated.preprocessor.encoders[2]
    assert set(encoder.values[3:5]) == {"gold", "pink"} and encoder.n_coded == 5
    tokens = updated.encoder.columns.code.weight
    assert not torch.equal(tokens[4], tokens[5]) and not torch.equal(tokens[4], tokens[0])


def test_neighbours_kept_is_a_share():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(50, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    turned = vectors @ np.linalg.qr(generator.normal(size=(4, 4)))[0]
    assert neighbours_kept(vectors, turned) == 1.0
    assert neighbours_kept(vectors, generator.permutation(vectors)) < 0.5
    assert np.isnan(neighbours_kept(vectors[:1], vectors[:1])) and neighbours_kept(vectors[:2], vectors[:2]) == 1.0


# ---------------------------------------------------------------- index and calibration


def test_the_index_takes_the_new_rows(model, updated):
    reference = updated.reference
    held = reference.held_out.rows
    assert len(reference) == N_OLD + N_NEW - 72 and len(held) == len(reference.calibration.scores) == 72
    assert (held >= N_OLD).sum() == 20 and np.array_equal(held[:52], model.reference.held_out.rows)
    assert set(index_of(updated)) | set(held) == set(range(N_OLD + N_NEW))
    rows = np.array([row for row in range(0, N_NEW, 9) if row + N_OLD not in held])
    nearest = updated.search(NEW.iloc[rows], k=1)
    assert nearest["neighbour_row_id"].to_pylist() == NEW["order"].iloc[rows].tolist()
    np.testing.assert_allclose(nearest["similarity"].to_numpy(), 1, atol=1e-5)


def test_a_row_scored_again_is_not_compared_with_itself(updated):
    index = updated.reference.indexes["cells"]
    for table, first in ((OLD, 0), (NEW, N_OLD)):
        content = updated.preprocessor.encode(open_table(table, id_column="order")).cells.content_hash().numpy()
        known = np.isin(np.arange(len(table)) + first, index.rows)
        assert (index.twins(content[known]) == (np.arange(len(table)) + first)[known]).all()


def test_vectors_of_old_rows_are_those_of_the_new_encoder(updated):
    rows = index_of(updated)
    old = rows[rows < N_OLD][::20]
    vectors = updated.embed(OLD.iloc[old])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(updated.reference.indexes[SEARCH_SPACE].vectors_of(old), vectors, atol=1e-5)


def test_the_oldest_rows_are_dropped(model):
    after = update(model, NEW, steps=0, drop_oldest=True)
    assert index_of(after).min() >= N_NEW and after.reference.held_out.rows.min() >= N_NEW
    assert len(after.reference) + len(after.reference.held_out) == N_OLD
    third = update(after, make_table(600, 2), steps=0, drop_oldest=True)  # more than there were
    assert index_of(third).min() >= N_NEW + 600
    assert len(third.reference) + len(third.reference.held_out) == N_OLD
    assert third.record["n_dropped"] == N_NEW + 600


def test_limits_hold_and_rows_without_cells_keep_their_vectors(model):
    limited = change(index={"rows": 300, "score_rows": 100, "calibration_rows": 30})
    small = pretrain(OLD, limited)
    after = update(small, NEW, steps=5)
    cells, search = after.reference.indexes["cells"].rows, after.reference.indexes[SEARCH_SPACE]
    assert len(search) == 300 and len(cells) == 100 and len(after.reference.held_out) == 30
    assert set(cells) <= set(search.rows)
    assert (search.rows >= N_OLD).sum() == 150  # half of the index
    assert (cells >= N_OLD).sum() == round(100 * N_NEW / (N_OLD + N_NEW))
    assert (after.reference.held_out.rows >= N_OLD).sum() == round(30 * N_NEW / (N_OLD + N_NEW))
    blind = search.rows[(search.rows < N_OLD) & ~np.isin(search.rows, small.reference.indexes["cells"].rows)]
    assert len(blind)
    before = small.reference.indexes[SEARCH_SPACE]
    np.testing.assert_array_equal(search.vectors_of(blind), before.vectors_of(blind))
    np.testing.assert_array_equal(search.content[search.places_of(blind)], before.content[before.places_of(blind)])
    assert after.reference.names(blind[:1]).to_pylist() == [OLD["order"][blind[0]]]


def test_p_values_hold_on_a_mix_of_old_and_new():
    """Of fresh rows, two old ones for each new one, a tenth has a p-value up to a tenth."""
    config = change(optimize={"steps": 1}, index={"calibration_share": 0.3})
    old, new = make_table(2_000, 10), make_table(1_000, 11, first=2_000, shift=2.5)
    before = pretrain(old, config)
    after = update(before, new, steps=1)
    mix = pd.concat([make_table(2_000, 12), make_table(1_000, 13, shift=2.5)])
    for level in (0.05, 0.1, 0.3):
        share = [(model.score(mix)["p_value"].to_numpy() <= level).mean() for model in (before, after)]
        assert abs(share[1] - level) < 0.035, level
    assert share[0] > 0.4  # the model of old rows alone calls most new rows strange


# ---------------------------------------------------------------- small, repeated, equal, refused


@pytest.mark.parametrize("n_rows", [1, 100])
def test_few_rows(model, n_rows):
    after = update(model, NEW[:n_rows], steps=None if n_rows < 100 else 2)
    assert after.record["n_rows"] == N_OLD + n_rows and len(after.reference.held_out) == 52 + n_rows // 10
    assert after.record["updates"][0]["n_steps"] == (50 if n_rows < 100 else 2)


def test_rows_may_be_more_than_fit_into_memory(model):
    small = dataclasses.replace(model, config=change(data={"in_memory_mb": 0}))
    with pytest.warns(TabmocoWarning, match="larger than data.in_memory_mb = 0"):
        after = update(small, NEW, steps=3)
    assert len(after.reference) == N_OLD + N_NEW - 72 and not np.array_equal(after.embed(OLD), model.embed(OLD))


def test_rows_that_come_a_few_at_a_time_are_kept_out_as_often():
    held = []
    record = {"n_rows": N_OLD}
    for _ in range(40):
        kept, apart = module._split(record, open_table(NEW[:5]), SMALL, calibrated=True)
        assert len(kept) + len(apart) == 5
        held.append(len(apart))
        record = {"n_rows": record["n_rows"] + 5}
    assert sum(held) == 20


def test_ids_may_be_categories(model):
    table = OLD[:80].assign(order=pd.Categorical(OLD["order"][:80]))
    small = pretrain(table, change(optimize={"steps": 1}))
    after = update(small, NEW, steps=0)
    names = after.reference.names(np.array([0, 80])).to_pylist()
    assert names == [OLD["order"][0], NEW["order"][0]]


def test_equal_rows_change_little(model):
    after = update(model, OLD, steps=10)
    assert len(after.reference) == 2 * (N_OLD - 52)
    assert after.record["updates"][0]["new_categories"] == {}
    assert after.record["updates"][0]["figures"]["neighbours_kept"] > 0.95


def test_a_table_without_held_out_rows_stays_so():
    small = pretrain(OLD[:80], change(optimize={"steps": 1}))
    after = update(small, NEW, steps=1)
    assert after.reference.held_out is None and not after.reference.calibration.held_out
    assert len(after.reference) == 80 + N_NEW and after.score(NEW[:3]).num_rows == 3


def test_it_is_saved_loaded_and_updated_again(model, updated, tmp_path):
    model.save(tmp_path / "model")
    first = update(tmp_path / "model", NEW, steps=10, out=tmp_path / "new", device="cpu")
    assert timeless(first.record) == timeless(updated.record)
    loaded = RowModel.load(tmp_path / "new", device="cpu")
    assert loaded.score(NEW, fpr=0.1).equals(first.score(NEW, fpr=0.1)) and loaded.record == first.record
    second = tabmoco.update(loaded, make_table(50, 4), steps=2)
    assert [one["n_rows"] for one in second.record["updates"]] == [N_NEW, 50]
    assert second.record["updates"][0]["seed"] != second.record["updates"][1]["seed"]
    assert second.record["n_rows"] == N_OLD + N_NEW + 50 == second.record["n_trained"] + second.record["n_held_out"]
    assert second.record["updates"][0]["new_categories"] == {"colour": ["pink", "gold"]}
    assert "updates" in second.info() and "72 rows kept out of training as encoded cells" in first.card()
    assert second.card().count(" rows of pandas DataFrame, ") == 2


def test_an_interrupted_update_changes_nothing(model, tmp_path, monkeypatch):
    model.save(tmp_path / "model")
    content = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}

    def stop(*arguments, **options):
        raise Interrupted("training was interrupted")

    monkeypatch.setattr(module, "train", stop)
    with pytest.raises(Interrupted):
        update(tmp_path / "model", NEW, out=tmp_path / "model", overwrite=True, device="cpu")
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == content
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_does_not_fit_is_refused(model, tmp_path):
    with pytest.raises(TableError, match="needs at least 1 row, .* has none"):
        update(model, NEW[:0])
    with pytest.raises(SchemaError, match="weight"):
        update(model, NEW.drop(columns="weight"))
    with pytest.raises(SchemaError, match="Column 'size' must hold a number in every cell"):
        update(model, NEW.assign(size="large"))
    with pytest.raises(TabmocoError, match="order"):
        update(model, NEW.drop(columns="order"))
    with pytest.raises(SchemaError, match="'order' must hold int64 as in training, got "):
        update(dataclasses.replace(model, reference=dataclasses.replace(model.reference, ids=pa.array([0]))), NEW)
    with pytest.raises(TabmocoError, match="steps must be at least 0, got steps=-1"):
        update(model, NEW, steps=-1)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "note").touch()
    with pytest.raises(ModelFileError, match="exists already"):
        update(model, NEW, out=tmp_path / "model")
    early = dataclasses.replace(model, reference=dataclasses.replace(model.reference, held_out=None))
    with pytest.raises(ModelFileError, match="keep the rows it was calibrated on"):
        update(early, NEW)
    with pytest.raises(TableError, match="no rows that could be replayed"):
        update(dataclasses.replace(model, reference=None), NEW)
