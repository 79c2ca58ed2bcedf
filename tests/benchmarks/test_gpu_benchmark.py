"""The benchmark of GPUs, rehearsed on a CPU: a device that computes otherwise is found out, and rates are told."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import gpu, gpu_checks
from benchmarks.speed_stages import Prepared
from tabmoco.config import PretrainConfig
from tabmoco.nn.encoder import RowEncoder
from tabmoco.tables.source import open_table

CPU = torch.device("cpu")


@pytest.mark.slow
def test_the_cpu_computes_what_it_computes(monkeypatch, small_forests):
    monkeypatch.setattr(gpu_checks, "N_STEPS", 2)
    monkeypatch.setattr(gpu_checks, "N_ROWS", 300)
    monkeypatch.setattr(gpu_checks, "BATCH_ROWS", 32)
    found = list(gpu_checks.checks(CPU))
    assert all(check.passed for check in found)
    assert {check.what.partition(":")[0] for check in found} >= {"moco", "dino", "a loaded model"}
    assert any(check.difference > 0 for check in found if "bfloat16" in check.what)


def test_a_device_that_computes_otherwise_is_found_out(monkeypatch):
    embed = RowEncoder.forward
    first = next(gpu_checks._step_checks("moco", gpu_checks.mixed_table(), CPU))
    monkeypatch.setattr(
        RowEncoder, "forward", lambda self, *cells: embed(self, *cells) * (50.0 if self.half_precision else 1.0)
    )
    checks = {check.what: check for check in gpu_checks._step_checks("masked_cells", gpu_checks.mixed_table(), CPU)}
    assert first.passed and not checks["masked_cells: loss in bfloat16"].passed
    assert checks["masked_cells: loss"].passed


def test_operations_are_those_of_the_matrix_products():
    config = PretrainConfig().override(
        [
            "objective.weights={masked_cells = 1.0}",
            "optimize.batch_size=16",
            "objective.queue_size=16",
            "encoder.number_embedding=linear",
        ]
    )
    prepared = Prepared.of(open_table(gpu.made_table(64, 3)), config, CPU)
    encoder = prepared.pretext.encoder
    matrices = sum(p.numel() for p in encoder.backbone.parameters() if p.ndim == 2)
    assert gpu.operations(prepared) == pytest.approx(3 * 2 * 16 * matrices, rel=0.35)  # and those of the heads


def test_rates_are_told_beside_the_ceiling(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(gpu.SIZES, "default", ("objective.queue_size=16", "encoder.d_block=8"))
    out = tmp_path / "gpu"
    asked = ["--device", "cpu", "--sizes", "default", "--batches", "8", "--seconds", "0.01", "--matrix", "64"]
    assert gpu.main([*asked, "--no-checks", "--out", str(out)]) == 0
    results = json.loads(out.with_suffix(".json").read_text())
    (run,), ceiling = results["runs"], results["ceiling"]["torch.float32"]
    assert run["precision"] == "float32" and run["trained_rows_per_second"] > 0
    assert gpu.share(run, {"torch.float32": ceiling}) == 100 * run["trained_operations_per_second"] / ceiling
    page = capsys.readouterr().out
    assert "Default encoder:" in page and "Wide encoder" not in page and "target 5,000,000: not met." in page
