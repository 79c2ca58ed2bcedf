"""Names and values of columns that would steer a terminal, a shell, a template or a path, through every command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from tabmoco.cli import app

pytestmark = pytest.mark.usefixtures("small_forests")

NAMES = [
    "{0.__class__}", "[red]x[/red]", "%s%n", "two\nlines", "\x1b[2Jgone", "$(touch stolen)", "../../stolen", "`id`|&;",
    "\u202eevil", "<script>alert(1)</script>",
]  # fmt: skip
ESCAPES = ["\x1b", "\u202e", "\x07", "\r"]
N_ROWS = 60


def make_table() -> pa.Table:
    """Rows whose columns are named like that, with categories and texts of the same kind."""
    random = np.random.default_rng(0)
    size = random.normal(size=N_ROWS)
    columns: dict[str, object] = {
        name: size * (place + 1) + random.normal(size=N_ROWS) for place, name in enumerate(NAMES)
    }
    columns["[bold]colour[/bold]"] = random.choice(NAMES, N_ROWS)
    columns["[i]told[/i]"] = random.choice(NAMES[:3], N_ROWS)
    columns["\x07note"] = [f"{NAMES[row % 10]} and {NAMES[row % 7]} in row {row}" for row in range(N_ROWS)]
    columns["row \x1b[31m"] = [f"\x1b[31m{NAMES[row % 10]} {row}" for row in range(N_ROWS)]
    table = pa.table(columns)
    gaps = pa.array(np.where(random.random(N_ROWS) < 0.2, None, table[NAMES[0]].to_numpy()), pa.float64())
    return table.set_column(0, NAMES[0], gaps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_forests) -> Path:
    """A trained model and its table."""
    folder = tmp_path_factory.mktemp("hostile")
    pq.write_table(make_table(), folder / "t.parquet")
    settings = ["encoder.d_block=16", "encoder.d_embedding=8", "encoder.d_token=4", "optimize.batch_size=32"]
    run(
        folder, "pretrain", "t.parquet", "--out", "model", "--steps", 3, "--id-column", "row \x1b[31m",
        "--exclude", "[i]told[/i]",
        *(part for setting in settings for part in ("--set", setting)),
    )  # fmt: skip
    return folder


def run(folder: Path, *arguments: object) -> Result:
    """Run a command in the folder; whatever it writes to the terminal must be harmless."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


COMMANDS = {
    "schema": ["schema", "t.parquet"],
    "info": ["info", "model"],
    "embed": ["embed", "model", "t.parquet", "--out", "e.parquet", "--overwrite"],
    "score": [
        "score",
        "model",
        "t.parquet",
        "--explain",
        "--fpr",
        "0.5",
        "--top",
        "5",
        "--out",
        "s.csv",
        "--overwrite",
    ],
    "search": ["search", "model", "t.parquet", "--rows", "0,3"],
    "drift": ["drift", "model", "t.parquet"],
    "duplicates": ["duplicates", "model", "t.parquet"],
    "cluster": ["cluster", "model", "t.parquet"],
    "impute": ["impute", "model", "t.parquet", "--out", "i.parquet", "--overwrite"],
    "probe": ["probe", "model", "t.parquet", "--target", "[i]told[/i]"],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_lets_a_name_or_a_value_steer_the_terminal(folder, command):
    shown = run(folder, *COMMANDS[command])
    for text in (shown.stdout, shown.stderr):
        assert not any(escape in text for escape in ESCAPES)
        assert "<class" not in text
    assert {path.name for path in folder.parent.parent.glob("**/stolen*")} == set()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", ["schema", "info", "score", "search", "drift"])
def test_json_holds_the_names_as_they_are(folder, command):
    shown = run(folder, *COMMANDS[command], "--json")
    json.loads(shown.stdout)
    assert not any(escape in shown.stdout + shown.stderr for escape in ESCAPES)
    if command in ("schema", "info"):
        assert {column["name"] for column in json.loads(shown.stdout)["columns"]} >= set(NAMES)


def test_names_are_shown_as_they_stand_and_not_as_markup(folder):
    shown = run(folder, *COMMANDS["schema"]).stdout
    for name in ("{0.__class__}", "[red]x[/red]", "%s%n", "$(touch", "../../stolen"):
        assert name in shown
    assert r"\x1b[2Jgone" in shown


def test_errors_spell_hostile_names_out(folder):
    table = make_table().drop_columns(["\x1b[2Jgone"])
    pq.write_table(table, folder / "short.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(app, ["score", "model", "short.parquet", "--out", "x.csv"])
    assert result.exit_code == 2
    assert r"- \x1b[2Jgone" in result.stderr and "\x1b" not in result.stderr


def test_suggested_commands_quote_hostile_names(folder):
    pq.write_table(make_table().append_column("$(touch here)", pa.array([[1]] * N_ROWS)), folder / "nested.parquet")
    for arguments, wanted in {
        ("schema", "nested.parquet"): "--exclude '$(touch here)'",
        ("probe", "model", "t.parquet", "--target", "$(touch stolen)"): "--exclude '$(touch stolen)'",
    }.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 2
        assert wanted in result.stderr


def test_the_model_card_holds_no_markup_of_theirs(folder):
    card = (folder / "model" / "MODEL_CARD.md").read_text()
    assert not any(escape in card for escape in ESCAPES)
    assert "<script>" not in card
