"""Figures of a run, written for TensorBoard and MLflow while it lasts."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tabmoco import pretrain
from tabmoco.cli import app
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ConfigError, TrainingError
from tabmoco.training.journal import check_journal, log_folder, opened_journal

SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=100),
    optimize=OptimizeConfig(steps=6, batch_size=32),
)


@pytest.fixture
def table() -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame({"a": random.normal(size=120), "b": random.choice(list("xyz"), 120)})


def scalars(folder) -> dict[str, dict[int, float]]:
    """What TensorBoard reads: values by name and step."""
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_figures_that_the_model_keeps(table, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    model = pretrain(table, SMALL, out=tmp_path / "model", log="tensorboard")
    seen = scalars(log_folder(tmp_path / "model"))
    for figures in model.record["metrics"]:
        for name in figures.keys() - {"step"}:
            assert seen[name][figures["step"]] == pytest.approx(figures[name], rel=1e-6), name
    assert max(seen["rows_per_second"]) == model.record["steps_done"]
    assert not (tmp_path / "model" / "log").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_resumed_run_takes_the_place_of_steps_that_were_lost(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    for n_done, steps, value in ((0, (1, 2, 3), 1.0), (2, (3, 4), 2.0)):
        with opened_journal("tensorboard", tmp_path / "model", SMALL, n_done=n_done) as journal:
            for step in steps:
                journal.write(step, {"loss": value})
    assert scalars(log_folder(tmp_path / "model"))["loss"] == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}


@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_figures_and_settings(table, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'runs'}")
    try:
        model = pretrain(table, SMALL, out=tmp_path / "model", log="mlflow")
        (run,) = mlflow.search_runs(output_format="list")
        assert run.info.run_name == "model"
        assert run.info.status == "FINISHED"
        assert run.data.params["objective.queue_size"] == "100"
        last = model.record["metrics"][-1]
        assert {name: run.data.metrics[name] for name in last.keys() - {"step"}} == pytest.approx(
            {name: value for name, value in last.items() if name != "step"}, rel=1e-6
        )
    finally:
        mlflow.set_tracking_uri(None)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_that_cannot_be_reached_is_said_in_a_sentence(table, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri("no-such-scheme://nowhere")
    try:
        with pytest.raises(TrainingError, match="MLflow must be able to begin a run"):
            pretrain(table, SMALL, log="mlflow")
    finally:
        mlflow.set_tracking_uri(None)


def test_what_cannot_be_written_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="tensorboard, mlflow, got 'paper'"):
        pretrain("no-such-file.parquet", SMALL, log="paper")
    with pytest.raises(ConfigError, match="set out"):
        check_journal("tensorboard", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"pip install 'tabmoco\[mlflow\]'"):
        check_journal("mlflow", tmp_path)
    check_journal(None, None)


def test_the_command_draws_curves(table, tmp_path):
    pytest.importorskip("jinja2", reason="plots need jinja2")
    table.to_parquet(tmp_path / "rows.parquet")
    shorter = [f"--set={name}" for name in ("encoder.d_block=16", "encoder.d_embedding=8", "objective.queue_size=100")]
    result = CliRunner().invoke(
        app,
        ["pretrain", str(tmp_path / "rows.parquet"), "--out", str(tmp_path / "model"), "--steps", "4", "--quiet",
         *shorter, "--plots", str(tmp_path / "plots")],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    drawn = sorted((tmp_path / "plots").iterdir())
    assert drawn
    assert all(path.suffix == ".svg" and path.read_text(encoding="utf-8").startswith("<svg") for path in drawn)


def test_plots_where_a_file_lies_are_refused_in_a_sentence(table, tmp_path):
    pytest.importorskip("jinja2", reason="plots need jinja2")
    from tabmoco.errors import TabmocoError
    from tabmoco.report.plots import write_plots

    (tmp_path / "plots").write_text("a file")
    with pytest.raises(TabmocoError, match="plots need a folder"):
        write_plots([], tmp_path / "plots")
