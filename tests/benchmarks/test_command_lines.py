"""Every benchmark says what its options are."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import benchmarks

FOLDER = Path(benchmarks.__file__).parent
COMMANDS = sorted(path.stem for path in FOLDER.glob("*.py") if "\ndef main(" in path.read_text(encoding="utf-8"))


def test_there_are_commands() -> None:
    assert {"anomaly", "few_label", "ablation", "speed"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_printed(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"benchmarks.{name}").main()
    assert stopped.value.code == 0
    assert "--out" in capsys.readouterr().out
