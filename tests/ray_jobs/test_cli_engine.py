"""`--engine ray` refuses in one line what cannot work, before it works."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys

import pytest
from command_line import refuse_in_a_line

from tabmoco.errors import ConfigError, TableError
from tabmoco.ray_jobs.cluster import first_line, read, spelled
from tabmoco.training.pretrain import checkpoint_path

COMMANDS = ("embed", "score", "pretrain")

has_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


def arguments(command: str, table, tmp_path) -> list[str]:
    given = [] if command == "pretrain" else [str(tmp_path / "model")]
    return [command, *given, str(table), "--out", str(tmp_path / "out"), "--engine", "ray"]


@pytest.mark.parametrize("command", COMMANDS)
def test_without_ray_the_extra_is_named(command, table, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    said = refuse_in_a_line(*arguments(command, table, tmp_path))
    assert said == "Error: engine = ray needs the package ray, which is not installed; pip install 'tabmoco[ray]'."


@pytest.mark.parametrize("command", COMMANDS)
def test_engines_and_options_that_do_not_go_together_are_refused(command, table, tmp_path):
    local = [*arguments(command, table, tmp_path)[:-2]]
    assert "--workers is for --engine ray" in refuse_in_a_line(*local, "--workers", 2)
    assert "--address is for --engine ray" in refuse_in_a_line(*local, "--address", "auto")
    assert "--engine must be local or ray, got 'spark'" in refuse_in_a_line(*local, "--engine", "spark")


@has_ray
def test_a_result_that_is_there_is_refused(table, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00000.parquet").touch()
    assert "out exists already" in refuse_in_a_line(*arguments("embed", table, tmp_path))


@has_ray
def test_scores_need_a_folder_and_no_view_of_all_p_values(table, tmp_path, model_folder):
    command = arguments("score", table, tmp_path)
    assert "--fdr looks at all p-values at once" in refuse_in_a_line(*command, "--fdr", 0.1)
    assert "needs --out" in refuse_in_a_line("score", model_folder, table, "--engine", "ray")


@has_ray
def test_an_output_that_holds_the_input_is_refused(table, model_folder, tmp_path):
    (tmp_path / "all").mkdir()
    for file in table.iterdir():
        (tmp_path / "all" / f"part-{file.name}").symlink_to(file)
    command = ["embed", model_folder, tmp_path / "all", "--out", tmp_path / "all", "--engine", "ray", "--overwrite"]
    assert "--out must not hold one of the files that are read" in refuse_in_a_line(*command)


@has_ray
@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_that_is_not_there_is_refused(command, table, model_folder, tmp_path, few):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    (tmp_path / "model").symlink_to(model_folder)
    command = arguments(command, few, tmp_path)
    assert f"there must be a Ray cluster at {address}, but" in refuse_in_a_line(*command, "--address", address)
    assert "must be HOST:PORT, auto or local, got 'there'" in refuse_in_a_line(*command, "--address", "there")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@has_ray
def test_an_interrupted_run_is_not_lost_to_a_cluster_that_is_not_there(few, tmp_path):
    checkpoint = checkpoint_path(tmp_path / "out")
    checkpoint.parent.mkdir()
    checkpoint.touch()
    command = arguments("pretrain", few, tmp_path)
    assert "holds an interrupted run; pass --resume" in refuse_in_a_line(*command)
    assert "must be HOST:PORT" in refuse_in_a_line(*command, "--overwrite", "--address", "there")
    assert checkpoint.exists()


@has_ray
def test_only_parquet_is_read_in_pieces(model_folder, tmp_path):
    (tmp_path / "t.csv").write_text("size,price,colour\n1,2,red\n")
    command = ["embed", model_folder, tmp_path / "t.csv", "--out", tmp_path / "out", "--engine", "ray"]
    assert "must be in Parquet files, but" in refuse_in_a_line(*command)


@has_ray
def test_ray_reports_nothing_of_its_use():
    code = "import os, tabmoco.ray_jobs.cluster as c; c.require_ray(); print(os.environ['RAY_USAGE_STATS_ENABLED'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize("error", [TableError("there is no file"), ConfigError("there is no GPU")])
def test_an_error_of_a_worker_is_the_error_of_the_job(error):
    assert type(read(spelled(error))) is type(error) and str(read(spelled(error))) == str(error)


def test_another_error_of_a_worker_is_named():
    assert str(read(spelled(KeyError("a")))) == "a worker failed by KeyError: 'a'"
    text = "ray::Worker()\n  File x\nTypeError: no such thing\n\nThe above exception"
    assert first_line(RuntimeError(text)) == "TypeError: no such thing"
    assert first_line(RuntimeError("lost.")) == "lost"
