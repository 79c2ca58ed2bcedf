"""The benchmark of speed: stages do what they are called, ratios are those of the seconds, rivals may be missing."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from benchmarks import few_label_ts3l, speed, speed_libraries, speed_rivals, speed_scoring
from benchmarks.speed_stages import FLOOR, LOOKED, READ, STAGES, Prepared, stages
from tabmoco.config import PretrainConfig
from tabmoco.tables.source import open_table

pytestmark = pytest.mark.usefixtures("small_forests")

SMALL = ("optimize.batch_size=16", "objective.queue_size=32", "encoder.d_block=8", "encoder.d_embedding=8")
SMALL_RUN = ("--rows", "200", "--columns", "3", "--repeats", "1", "--steps", "2", *(f"--set={one}" for one in SMALL))


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return Prepared.of(open_table(speed.made_table(200, 3)), PretrainConfig().override(SMALL))


def test_all_are_measured_and_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(speed_rivals, "installed", lambda package: False)
    monkeypatch.setattr(speed, "start_up", lambda repeats: {"help": 0.2, "torch": 1.0, "share": 0.2})
    assert speed.main([*SMALL_RUN, "--out", str(tmp_path / "speed")]) == 0
    results = json.loads((tmp_path / "speed.json").read_text())
    steps = results["training"]["stages"]
    assert list(steps) == [*STAGES, READ, LOOKED]
    assert steps[FLOOR]["over_floor"] == 0.0
    assert all(one["milliseconds"] > 0 for one in steps.values())
    assert steps[LOOKED]["over_floor"] > steps[READ]["over_floor"] > steps[STAGES[-1]]["over_floor"]
    one = results["embedding"]
    assert one["share"] == pytest.approx(100 * one["whole"] / one["forward"], rel=1e-6)
    one = results["encoding"]
    assert one["times"] == pytest.approx(one["reading"] / one["whole"], rel=1e-6)
    assert list(results["scoring"])[0] == speed_scoring.OWN
    assert "scikit-learn IsolationForest" in results["scoring"]
    assert all(rate > 0 for rate in results["scoring"].values())
    page = (tmp_path / "speed.md").read_text()
    assert page.strip() == capsys.readouterr().out.strip()
    assert "Not installed, so not measured: ts3l SCARF, ts3l VIME, pytorch-tabnet TabNet, of that size" in page
    assert all(f"## {title}" in page for title in ("Training", "Embedding", "Encoding", "Scoring", "Beside other"))


def test_rivals_are_driven_by_their_own_trainers(monkeypatch):
    pytest.importorskip("ts3l", reason="ts3l is not installed")
    monkeypatch.setattr(few_label_ts3l, "BATCH_ROWS", 16)
    found = speed_rivals.rates(speed.made_table(300, 3), PretrainConfig().override(SMALL), n_steps=2)
    assert list(found)[:4] == [speed_rivals.OWN, speed_rivals.OWN_LIKE, *speed_rivals.TS3L]
    assert all(one["rows_per_second"] > 0 and one["parameters"] > 0 for one in found.values())


@pytest.mark.parametrize(("name", "moves", "fills"), [(STAGES[0], 0, 0), (FLOOR, 0, 0), (STAGES[2], 1, 1)])
def test_a_stage_does_what_the_one_before_does_and_one_thing_more(prepared, name, moves, fills, monkeypatch):
    seen = {"update": 0, "push": 0, "target": 0}

    def counted(what, run):
        def call(*arguments, **named):
            seen[what] += 1
            return run(*arguments, **named)

        return call

    kind = type(prepared.pretext.objectives["moco"])
    target, queue = prepared.pretext.objectives["moco"].target, prepared.pretext.objectives["moco"].queue
    monkeypatch.setattr(type(target), "update", counted("update", type(target).update))
    monkeypatch.setattr(type(target), "forward", counted("target", type(target).forward))
    monkeypatch.setattr(type(queue), "push", counted("push", type(queue).push))
    assert kind.__name__ == "MoCo"
    run = stages(prepared)[name]
    seen.update(dict.fromkeys(seen, 0))
    run(3)
    assert seen == {"update": 3 * moves, "push": 3 * fills, "target": 0 if name == STAGES[0] else 3}


def test_the_queue_is_full_and_every_stage_trains_a_network_of_its_own(prepared):
    before = {name: value.clone() for name, value in prepared.pretext.state_dict().items()}
    assert prepared.pretext.objectives["moco"].queue.filled.all()
    for run in stages(prepared).values():
        run(2)
    after = prepared.pretext.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_ways_take_turns_and_the_first_round_does_not_count():
    ran = []
    seconds = speed.taking_turns({name: (lambda name=name: ran.append(name)) for name in "ab"}, 3)
    assert ran == list("ab" * 4)
    assert [len(taken) for taken in seconds.values()] == [3, 3]
    assert speed.median_ratio([2.0, 9.0, 4.0], [1.0, 3.0, 2.0]) == 2.0


def test_made_tables_hang_together():
    table = speed.made_table(500, 6)
    assert isinstance(table, pa.Table)
    values = np.stack([column.to_numpy() for column in table.columns])
    assert np.linalg.svd(np.corrcoef(values), compute_uv=False)[:4].sum() > 5.0


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        speed.main(["--only", "training,flying"])
    assert "got flying" in capsys.readouterr().err


@pytest.mark.parametrize("name", speed_libraries.LIBRARIES)
def test_a_library_pretrains_a_network_of_tabmocos_size(name):
    pytest.importorskip(speed_libraries.LIBRARIES[name][0], reason=f"{name} is not installed")
    table = speed.made_table(600, 30)
    own = speed_rivals.rates(table, PretrainConfig(), n_steps=1)[speed_rivals.OWN_LIKE]["parameters"]
    found = speed_libraries.rate(name, speed_libraries.LIKE, table)
    assert found["rows_per_second"] > 0
    assert found["parameters"] == pytest.approx(own, rel=0.2)
