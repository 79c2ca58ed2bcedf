"""The command line from the outside: what it prints where, what it writes, and how it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import tabmoco
import tabmoco.model
import tabmoco.training.pretrain
from tabmoco import cli
from tabmoco.cli import app
from tabmoco.errors import Interrupted, TabmocoError
from tabmoco.model import RowModel
from tabmoco.objectives import OBJECTIVES
from tabmoco.tables.notices import TabmocoWarning

N_ROWS = 120
STRANGE_NAME = "[red]fare[/red]\x1b[2J"
STRANGE_VALUE = "[bold]gold\x07[/bold]"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refuse(*arguments: object) -> str:
    """Run what must fail; its one line of explanation."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


def make_table(n_rows: int = N_ROWS, seed: int = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    size = generator.normal(size=n_rows)
    return pa.table(
        {
            "ticket": [f"T{row:04d}" for row in range(n_rows)],
            "size": size,
            STRANGE_NAME: 2 * size + generator.normal(scale=0.1, size=n_rows),
            "class": [STRANGE_VALUE if value > 0 else "coach" for value in size],
            "constant": [1] * n_rows,
        }
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "tickets.parquet"
    pq.write_table(make_table(), path)
    return path


@pytest.fixture(scope="module")
def model(data) -> Path:
    path = data.parent / "model"
    succeed("pretrain", data, "--out", path, "--id-column", "ticket", "--steps", 3, "--set", "encoder.d_block=16", "-q")
    return path


# ---------------------------------------------------------------- schema


def test_schema_shows_kinds_reasons_and_what_is_left_out(data):
    output = succeed("schema", data).stdout

    used, _, left_out = output.partition("left out")
    assert "size" in used and "number" in used and "class" in used and "category" in used
    assert "constant" in left_out and "ticket" in left_out and "identifier" in left_out.lower()


def test_schema_as_json_is_one_document(data):
    columns = json.loads(succeed("schema", data, "--json").stdout)["columns"]
    assert [column["name"] for column in columns] == make_table().column_names


def test_schema_obeys_the_data_options(data, tmp_path):
    settings = tmp_path / "run.toml"
    settings.write_text('[data]\nkinds = {size = "category"}\n')
    options = ["--columns", "size,class", "--columns", "constant", "--exclude", "constant", "--config", settings]

    columns = json.loads(succeed("schema", data, *options, "--kind", "class=text", "--json").stdout)["columns"]

    assert {column["name"]: column["kind"] for column in columns} == {"size": "category", "class": "text"}


def test_names_with_commas_are_quoted(tmp_path):
    path = tmp_path / "commas.csv"
    path.write_text('"a,b",c,d\n1,2,3\n4,5,9\n')
    columns = json.loads(succeed("schema", path, "--columns", '"a,b", d', "--json").stdout)["columns"]
    assert [column["name"] for column in columns] == ["a,b", "d"]


def test_markup_and_control_characters_are_printed_as_text(data, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    output = succeed("schema", data, "--kind", "ticket=category").stdout
    assert "[red]fare[/red]\\x1b[2J" in output.replace("\n", "")
    assert "[bold]gold\\x07[/bold]" in output
    assert not {"\x1b", "\x07"} & set(output)


# ---------------------------------------------------------------- pretrain and info


def test_pretrain_turns_options_into_settings(data, tmp_path, monkeypatch):
    seen = {}

    def fake(table, config, **options):
        seen.update(options, config=config, table=table)

    monkeypatch.setattr(tabmoco.training.pretrain, "pretrain", fake)
    settings = tmp_path / "run.toml"
    settings.write_text("[optimize]\nsteps = 5\nbatch_size = 64\n[objective]\nqueue_size = 7\n")

    succeed(
        *("pretrain", data, "--out", tmp_path / "m", "--config", settings, "--set", "objective.queue_size=99"),
        *("--epochs", 2.5, "--seed", 4, "--device", "cpu", "--index", "50", "--exclude", "class", "--overwrite"),
        *("--target", "ticket"),
    )

    config = seen["config"]
    assert (config.optimize.steps, config.optimize.epochs, config.optimize.batch_size) == (None, 2.5, 64)
    assert (config.objective.queue_size, config.seed, config.device, config.index.rows) == (99, 4, "cpu", 50)
    assert config.data.exclude == ("class",)
    assert config.data.target == "ticket"
    assert seen["table"] == [str(data)]
    assert seen["out"] == tmp_path / "m"
    assert (seen["overwrite"], seen["resume"], seen["progress"]) == (True, False, True)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_can_be_asked_for_by_name(data, tmp_path, name):
    options = ["--steps", 2, "--set", "encoder.d_block=16", "--set", "objective.n_prototypes=8", "--quiet"]
    succeed("pretrain", data, "--out", tmp_path / "m", "--objective", name, *options)
    assert json.loads(succeed("info", tmp_path / "m", "--json").stdout)["objective"] == {name: 1.0}
    succeed("score", tmp_path / "m", data, "--out", tmp_path / "s.parquet", "--quiet")
    assert np.isfinite(pq.read_table(tmp_path / "s.parquet")["anomaly_score"].to_numpy()).all()


def test_objectives_are_weighed_in_place_of_the_defaults(data, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(tabmoco.training.pretrain, "pretrain", lambda table, config, **_: seen.append(config))
    succeed("pretrain", data, "--out", tmp_path / "m", "--objective", "simclr", "--objective", "masked_cells=0.5")
    assert seen[0].objective.weights == {"simclr": 1.0, "masked_cells": 0.5}


def test_anomalies_among_the_rows_are_told_of_by_an_option_or_by_the_settings(data, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(tabmoco.training.pretrain, "pretrain", lambda table, config, **_: seen.append(config))
    for options in ([], ["--contaminated"], ["--set", "index.contaminated=true"]):
        succeed("pretrain", data, "--out", tmp_path / "m", *options)
    assert [config.index.contaminated for config in seen] == [False, True, True]


def test_pretrain_as_json_says_nothing_else(data, tmp_path):
    result = succeed("pretrain", data, "--out", tmp_path / "m", "--steps", 2, "--set", "encoder.d_block=16", "--json")
    assert json.loads(result.stdout) == json.loads(succeed("info", tmp_path / "m", "--json").stdout)


def test_info_reads_like_the_model_card(model):
    assert succeed("info", model).stdout.splitlines()[0].startswith("# ")
    assert "constant" in succeed("info", model).stdout


def test_an_interrupted_training_ends_with_130_and_says_how_to_go_on(data, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise Interrupted("stopped at step 7; go on with --resume.")

    monkeypatch.setattr(tabmoco.training.pretrain, "pretrain", interrupted)
    result = invoke("pretrain", data, "--out", tmp_path / "m")
    assert result.exit_code == 130
    assert result.stderr == "Error: stopped at step 7; go on with --resume.\n"


# ---------------------------------------------------------------- embed, score, search


def test_embed_writes_what_the_library_computes(model, data, tmp_path):
    result = succeed("embed", model, data, "--out", tmp_path / "e.parquet", "--json")

    written = pq.read_table(tmp_path / "e.parquet")
    expected = RowModel.load(model).embed(str(data))
    facts = json.loads(result.stdout)
    assert written.column_names == ["ticket", "embedding"]
    assert written["ticket"].to_pylist()[:2] == ["T0000", "T0001"]
    np.testing.assert_array_equal(np.array(written["embedding"].to_pylist(), np.float32), expected)
    assert facts["n_rows"] == N_ROWS and facts["out"] == str(tmp_path / "e.parquet")
    assert (facts["space"], facts["width"]) == ("embedding", expected.shape[1])


def test_embed_writes_expected_cells_when_asked(model, data, tmp_path):
    result = succeed("embed", model, data, "--space", "expected", "--out", tmp_path / "e.parquet", "--json")
    written = pq.read_table(tmp_path / "e.parquet")
    expected = RowModel.load(model).embed(str(data), space="expected")
    assert written.column_names == ["ticket", "expected"]
    np.testing.assert_array_equal(np.array(written["expected"].to_pylist(), np.float32), expected)
    assert json.loads(result.stdout)["width"] == expected.shape[1]


def test_embed_refuses_a_space_that_is_not_there(model, data, tmp_path):
    line = refuse("embed", model, data, "--space", "cells", "--out", tmp_path / "e.parquet")
    assert line == "Error: space must be one of embedding, expected, got 'cells'."
    assert list(tmp_path.iterdir()) == []


def test_embed_spreads_vectors_over_csv_columns(model, data, tmp_path):
    succeed("embed", model, data, "--out", tmp_path / "e.csv", "--id-column", "constant")
    names = pa.csv.read_csv(tmp_path / "e.csv").column_names
    assert names[:3] == ["constant", "e0", "e1"]


def test_rows_are_numbered_where_the_id_column_is_not_there(model, data, tmp_path):
    pq.write_table(pq.read_table(data).drop_columns("ticket"), tmp_path / "new.parquet")
    succeed("score", model, tmp_path / "new.parquet", "--out", tmp_path / "s.csv")
    assert pa.csv.read_csv(tmp_path / "s.csv")["row_id"].to_pylist() == list(range(N_ROWS))


def test_score_writes_every_row_and_prints_the_strangest(model, data, tmp_path):
    options = ["--fpr", 0.1, "--explain", "--top", 4]
    facts = json.loads(succeed("score", model, data, "--out", tmp_path / "s.arrow", *options, "--json").stdout)
    shown = succeed("score", model, data, *options).stdout

    written = pa.feather.read_table(tmp_path / "s.arrow")
    order = np.argsort(-written["anomaly_score"].to_numpy(), kind="stable")[:4]
    assert written.num_rows == N_ROWS
    assert facts["top"] == written.take(order).to_pylist()
    assert facts["n_anomalies"] == sum(written["is_anomaly"].to_pylist()) > 0
    first_words = [line.split()[0] for line in shown.splitlines() if line.strip()]
    positions = [first_words.index(ticket) for ticket in written["ticket"].take(order).to_pylist()]
    assert positions == sorted(positions)
    assert "expected" in shown and "%" in shown


@pytest.fixture(scope="module")
def strange(data) -> Path:
    """The table with five rows whose cells do not fit one another."""
    table = make_table().to_pandas()
    table.loc[:4, "size"] += 40.0
    path = data.parent / "strange.parquet"
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)
    return path


def test_a_rate_of_false_discoveries_flags_what_the_model_flags(model, strange, tmp_path):
    facts = json.loads(succeed("score", model, strange, "--fdr", 0.5, "--out", tmp_path / "s.arrow", "--json").stdout)

    written = pa.feather.read_table(tmp_path / "s.arrow")
    by_model = RowModel.load(model, device="cpu").score(pq.read_table(strange), fdr=0.5)
    assert written["is_anomaly"] == by_model["is_anomaly"]
    assert facts["n_anomalies"] == sum(written["is_anomaly"].to_pylist())
    assert 0 < facts["n_anomalies"] < N_ROWS
    assert json.loads(succeed("score", model, strange, "--fdr", 0, "--json").stdout)["n_anomalies"] == 0


def test_explain_tells_of_the_strangest_tenth_and_explain_all_of_every_row(model, strange, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    cells = {}
    for option in ("--explain", "--explain-all"):
        out = tmp_path / f"{option}.parquet"
        succeed("score", model, strange, option, "--fpr", 0.02, "--out", out)
        cells[option] = pq.read_table(out)["cells"].to_pylist()
        p_value = pq.read_table(out)["p_value"].to_numpy()
    assert [told is not None for told in cells["--explain"]] == (p_value <= 0.1).tolist()
    assert 5 <= sum(told is not None for told in cells["--explain"]) < N_ROWS // 2
    assert None not in cells["--explain-all"]
    both = succeed("score", model, strange, "--explain", "--explain-all", "--top", N_ROWS, "--json").stdout
    assert None not in [row["cells"] for row in json.loads(both)["top"]]

    shown = {option: succeed("score", model, strange, option, "--top", N_ROWS).stdout for option in cells}
    assert all(f"T{row:04d}" in text for text in shown.values() for row in range(N_ROWS))
    assert shown["--explain-all"].count("expected") > shown["--explain"].count("expected") > 0


@pytest.mark.parametrize("option", ["--explain", "--explain-all"])
def test_explained_scores_can_be_written_as_csv(model, strange, tmp_path, option):
    succeed("score", model, strange, option, "--out", tmp_path / "s.csv")
    assert pa.csv.read_csv(tmp_path / "s.csv").num_rows == N_ROWS


def test_scores_show_no_cell_unless_asked(model, data):
    assert "coach" not in succeed("score", model, data).stdout
    assert "gold" not in succeed("score", model, data).stdout


def test_search_writes_ranks_and_shows_the_first_rows(model, data, tmp_path):
    options = ["--k", 3, "--rows", "7,0"]
    facts = json.loads(succeed("search", model, data, *options, "--out", tmp_path / "n.parquet", "--json").stdout)
    shown = succeed("search", model, data, *options).stdout

    written = pq.read_table(tmp_path / "n.parquet").to_pylist()
    assert [(row["ticket"], row["rank"]) for row in written] == [
        ("T0007", 1), ("T0007", 2), ("T0007", 3), ("T0000", 1), ("T0000", 2), ("T0000", 3),
    ]  # fmt: skip
    assert facts["first"] == written
    assert shown.count("T0007") >= 1 and all(row["neighbour_row_id"] in shown for row in written)


def test_search_shows_few_queries_of_many(model, data):
    first = json.loads(succeed("search", model, data, "--k", 2, "--json").stdout)["first"]
    assert [row["ticket"] for row in first] == [f"T{row:04d}" for row in range(5) for _ in range(2)]


def test_a_file_is_only_mentioned_where_nobody_looks(model, data, tmp_path):
    result = succeed("score", model, data, "--out", tmp_path / "s.csv")
    assert result.stdout.startswith(f"Wrote {tmp_path / 's.csv'}: {N_ROWS} rows in ")
    assert len(result.stdout.splitlines()) == 1
    assert succeed("score", model, data, "--out", tmp_path / "t.csv", "--quiet").output == ""


def test_nothing_is_overwritten_and_no_work_is_done_before_that_is_said(data, tmp_path, monkeypatch):
    monkeypatch.setattr(RowModel, "load", lambda *_, **__: pytest.fail("the model was loaded"))
    (tmp_path / "s.csv").write_text("mine")
    for name in ("embed", "score", "search"):
        assert "exists already" in refuse(name, tmp_path, data, "--out", tmp_path / "s.csv")
    assert (tmp_path / "s.csv").read_text() == "mine"


def test_overwrite_replaces_a_result_but_never_the_input(model, data, tmp_path):
    pq.write_table(make_table(seed=1), tmp_path / "in.parquet")
    before = (tmp_path / "in.parquet").read_bytes()
    (tmp_path / "s.csv").write_text("mine")

    succeed("score", model, data, "--out", tmp_path / "s.csv", "--overwrite")
    line = refuse("score", model, tmp_path / "*.parquet", "--out", tmp_path / "in.parquet", "--overwrite")

    assert (tmp_path / "s.csv").read_text().startswith('"ticket"')
    assert "must not be one of the files that are read" in line
    assert (tmp_path / "in.parquet").read_bytes() == before


# ---------------------------------------------------------------- errors and notes


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["schema", "nothing.parquet"], ["nothing.parquet"]),
        (["schema", "DATA", "--exclude", "sise"], ["sise", "size"]),
        (["schema", "DATA", "--kind", "size"], ["--kind", "COLUMN=KIND", "'size'"]),
        (["schema", "DATA", "--kind", "size=nummer"], ["data.kinds.size", "number", "nummer"]),
        (["schema", "DATA", "--kind", "sise=number"], ["sise", "size"]),
        (["schema", "DATA", "--id-column", "tickets"], ["tickets", "ticket"]),
        (["schema", "DATA", "--config", "nothing.toml"], ["nothing.toml", "No such file"]),
        (["pretrain", "DATA", "--out", "m", "--set", "objective.queue_sise=4"], ["queue_sise", "objective.queue_size"]),
        (["pretrain", "DATA", "--out", "m", "--objective", "mocco"], ["'mocco'", "moco, "]),
        (["pretrain", "DATA", "--out", "m", "--objective", "moco=much"], ["NAME=WEIGHT", "'moco=much'"]),
        (["pretrain", "DATA", "--out", "m", "--objective", "moco=-1"], ["weight above 0", "-1"]),
        (["pretrain", "DATA", "--out", "m", "--set", "seed"], ["seed", "objective.queue_size=8192"]),
        (["pretrain", "DATA", "--out", "m", "--steps", "5", "--minutes", "1"], ["steps and minutes"]),
        (["pretrain", "DATA", "--out", "m", "--steps", "0"], ["steps must be above 0"]),
        (["pretrain", "DATA", "--out", "m", "--index", "some"], ["index.rows", "auto, queue, all", "some"]),
        (["pretrain", "DATA", "--out", "m", "--device", "gpu"], ["device", "cuda", "gpu"]),
        (["pretrain", "DATA", "--out", "MODEL"], ["exists already", "--overwrite"]),
        (["info", "DATA"], ["tickets.parquet"]),
        (["info", "nothing"], ["nothing"]),
        (["embed", "MODEL", "DATA", "--out", "e.xlsx"], [".parquet", ".xlsx"]),
        (["embed", "MODEL", "DATA", "--out", "no/e.csv"], ["no folder"]),
        (["score", "MODEL", "DATA", "--id-column", "tikcet"], ["tikcet", "ticket"]),
        (["score", "MODEL", "DATA", "--fpr", "0.1", "--fdr", "0.1"], ["fpr=0.1", "fdr=0.1", "leave one out"]),
        (["search", "MODEL", "DATA", "--rows", "0,x"], ["--rows", "'x'"]),
        (["search", "MODEL", "DATA", "--rows", "500", "--other-rows"], ["500", "119"]),
    ],
)
def test_bad_input_is_one_line_with_the_remedy(arguments, parts, data, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refuse(*({"DATA": data, "MODEL": model}.get(argument, argument) for argument in arguments))
    assert [part for part in parts if part not in line] == []
    assert os.listdir(tmp_path) == []


def test_missing_columns_are_named(model, data, tmp_path):
    pq.write_table(pq.read_table(data).drop_columns("size"), tmp_path / "new.parquet")
    result = invoke("score", model, tmp_path / "new.parquet", "--out", tmp_path / "s.csv")
    assert result.exit_code == 2
    assert "size" in result.stderr
    assert os.listdir(tmp_path) == ["new.parquet"]


def test_wrong_options_and_commands_suggest_the_right_ones(data):
    assert "--overwrite" in invoke("score", "model", data, "--overwite").stderr
    assert "'score'" in invoke("scor").stderr


def hidden_interrupt() -> RuntimeError:
    """Ctrl-C while a class is being made, as Python up to 3.11 passes it on."""
    error = RuntimeError("Error calling __set_name__ on 'cached_property' instance")
    error.__cause__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), hidden_interrupt()])
def test_an_interrupt_before_any_command_says_nothing(monkeypatch, capsys, error):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(cli, "app", lambda **_: raise_(error))
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 130 and capsys.readouterr().err == ""


def test_other_errors_before_any_command_are_not_hidden(monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(cli, "app", lambda **_: raise_(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main()


def raise_(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError(), 2, "Error: there is not enough memory; "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "Error: there is not enough memory; "),
        (OSError(28, "No space left on device", "somewhere"), 2, "Error: somewhere: No space left on device."),
        (KeyboardInterrupt(), 130, "Error: interrupted; "),
        (hidden_interrupt(), 130, "Error: interrupted; "),
        (TabmocoError("a\x1b[2J\nb"), 2, "Error: a\\x1b[2J"),
    ],
)
def test_what_goes_wrong_halfway_is_one_line_and_leaves_nothing(model, data, tmp_path, monkeypatch, error, code, line):
    def breaking(self, *_, **__):
        yield from list(embed(self, str(data)))[:1]
        raise error

    embed = RowModel.iter_embeddings
    monkeypatch.setattr(RowModel, "iter_embeddings", breaking)
    result = invoke("embed", model, data, "--out", tmp_path / "e.parquet")
    assert result.exit_code == code
    assert result.stderr.startswith(line)
    assert os.listdir(tmp_path) == []


def test_bugs_are_not_hidden(model, data, monkeypatch):
    monkeypatch.setattr(RowModel, "load", lambda *_, **__: 1 / 0)
    assert isinstance(invoke("info", model).exception, ZeroDivisionError)


def test_warnings_become_notes_said_once(model, data, monkeypatch):
    def warning(self, *arguments, **options):
        for _ in range(2):
            warnings.warn("column 'size': [red]3 unseen\x1b values", TabmocoWarning, stacklevel=1)
            warnings.warn("of no interest", DeprecationWarning, stacklevel=1)
        return search(self, *arguments, **options)

    search = RowModel.iter_neighbours
    monkeypatch.setattr(RowModel, "iter_neighbours", warning)
    result = succeed("search", model, data, "--other-rows", "--json")
    assert result.stderr == "Note: column 'size': [red]3 unseen\\x1b values\n"
    json.loads(result.stdout)
    assert succeed("search", model, data, "--json", "--quiet").stderr == ""


def test_search_notices_the_training_table_and_leaves_each_row_out_of_its_own_results(model, data):
    noticed, told = (succeed("search", model, data, "--k", 1, "--json", *more) for more in ([], ["--same-rows"]))
    assert "learned from" in noticed.stderr and told.stderr == ""
    assert json.loads(noticed.stdout)["first"] == json.loads(told.stdout)["first"]
    other = json.loads(succeed("search", model, data, "--k", 1, "--json", "--other-rows").stdout)
    assert other["first"] != json.loads(told.stdout)["first"]


def test_progress_is_drawn_on_a_terminal_only(model, data, tmp_path, monkeypatch):
    assert succeed("embed", model, data, "--out", tmp_path / "a.csv").stderr == ""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "Embedding" in succeed("embed", model, data, "--out", tmp_path / "b.csv").stderr
    assert succeed("embed", model, data, "--out", tmp_path / "c.csv", "--quiet").stderr == ""
    json.loads(succeed("embed", model, data, "--out", tmp_path / "d.csv", "--json").stdout)


# ---------------------------------------------------------------- probe


@pytest.fixture(scope="module")
def labelled(data) -> Path:
    table = make_table()
    size = np.array(table["size"])
    path = data.parent / "labelled.parquet"
    labels = [None if row < 10 else "large" if value > 0 else "[b]small[/b]" for row, value in enumerate(size)]
    pq.write_table(table.append_column("label", pa.array(labels)).append_column("price", pa.array(10 * size)), path)
    return path


def test_probe_compares_the_embedding_with_what_it_has_to_beat(model, labelled):
    output = succeed("probe", model, labelled, "--target", "label", "--seeds", 2).stdout
    assert "What rows tell of label: 2 classes, learned from 77 rows, tested on 33" in output
    assert "10 rows without a label were left out." in output
    assert [line.split("  ")[0] for line in output.splitlines()[2:12:2]] == [
        "expected cells", "embedding", "cells", "untrained encoder", "PCA of the cells",
    ]  # fmt: skip
    assert "linear probe" in output and "kNN probe" in output and "AUROC" in output and "±" in output


def test_probe_as_json_holds_every_seed(model, labelled):
    found = json.loads(succeed("probe", model, labelled, "--target", "price", "--labels", 50, "--json").stdout)
    assert (found["task"], found["n_learned"], found["n_tested"], found["n_left_out"]) == ("regression", 50, 70, 0)
    assert len(found["figures"]) == 10 and len(found["figures"][0]["r2"]["values"]) == 3
    classes = succeed("probe", model, labelled, "--target", "label", "--task", "classification", "--json")
    assert json.loads(classes.stdout)["n_classes"] == 2


def test_probe_refuses_a_column_that_the_model_saw(model, labelled):
    line = refuse("probe", model, labelled, "--target", "class")
    assert line == (
        "Error: the target must be a column that the model never saw, but it was trained on 'class', so the figures "
        "would mislead; pretrain again with --exclude class."
    )
    assert "'lable'" in refuse("probe", model, labelled, "--target", "lable")
    assert "task must be" in refuse("probe", model, labelled, "--target", "label", "--task", "sort")


# ---------------------------------------------------------------- the program


def test_config_prints_a_file_that_reads_back(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(succeed("config").stdout, encoding="utf-8")
    assert tabmoco.PretrainConfig.from_toml(path) == tabmoco.PretrainConfig()
    assert json.loads(succeed("config", "--json").stdout) == tabmoco.PretrainConfig().to_dict()


def test_version():
    assert succeed("--version").stdout == f"tabmoco {tabmoco.__version__}\n"


def test_the_module_runs_as_a_program_and_a_closed_pipe_is_no_error(data):
    command = f"{sys.executable} -m tabmoco config | head -n 1"
    run = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert run.stdout.startswith("# Everything that decides")
    assert run.stderr == ""


def test_a_polite_kill_is_an_interrupt_that_leaves_nothing(model, data, tmp_path):
    slow = (
        "import time\nfrom tabmoco import cli, model\noriginal = model.RowModel.iter_embeddings\n"
        "def iterate(self, table, **_):\n"
        "    yield from original(self, table)\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "model.RowModel.iter_embeddings = iterate\ncli.main()\n"
    )
    command = [sys.executable, "-c", slow, "embed", str(model), str(data), "--out", str(tmp_path / "e.parquet")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert [name.endswith(".part") for name in os.listdir(tmp_path)] == [True]
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr == "Error: interrupted; no half-written file is left.\n"
    assert os.listdir(tmp_path) == []
