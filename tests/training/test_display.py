"""Figures in words, and where they are shown."""

from __future__ import annotations

import pytest

from tabmoco.training import display as displays
from tabmoco.training.display import figures_text, reading_display, training_display

FIGURES = {"loss": 1.5, "moco/positive_similarity": 0.593, "moco/negative_similarity": -0.001}


def test_figures_are_told_in_words_and_no_zero_is_negative():
    text = figures_text({**FIGURES, "retrieval_accuracy": 0.98}, 2_981.4)
    assert text == "loss 1.500, similarity 0.59 to the own key, 0.00 to others, found 98%, 2,981 rows/s"
    assert "similarity 0.59 to the own key, -0.25" in figures_text({**FIGURES, "moco/negative_similarity": -0.251}, 1)
    assert figures_text({"loss": 2.0}, 10.0) == "loss 2.000, 10 rows/s"


@pytest.mark.parametrize("shown", [True, False])
def test_lines_go_to_standard_error_unless_quiet(capsys, shown):
    with training_display(2, shown=shown) as display:
        display.say("Reading.")
        display.update(1, 10.0, FIGURES)
        display.update(2, 10.0, FIGURES)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == (["Reading.", f"step 2 of 2: {figures_text(FIGURES, 10.0)}"] if shown else [])


def test_a_long_reading_is_told_again_and_again_and_a_short_one_not_at_all(capsys, monkeypatch):
    with reading_display(100, shown=True) as advance:
        advance(60)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(displays, "LINE_SECONDS", 0.0)
    with reading_display(100, shown=True) as advance:
        for n_done in (60, 40, 60):
            advance(n_done)
    with reading_display(100, shown=False) as advance:
        advance(60)
    assert capsys.readouterr().err.splitlines() == [f"read {n} of 100 rows" for n in (60, 100, 60)]


def test_a_terminal_shows_a_bar_that_starts_again_with_every_reading(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with reading_display(100, shown=True) as advance:
        for n_done in (60, 40, 30):
            advance(n_done)
    err = capsys.readouterr().err
    assert "reading" in err and "30/100" in err
