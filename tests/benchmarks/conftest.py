"""Small tables of known structure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

DrawParts = Callable[[int], pa.Table]


@pytest.fixture(scope="session")
def draw_parts() -> DrawParts:
    """`draw_parts(n_rows)`: parts with a serial number."""
    return _draw_parts


@pytest.fixture(scope="session")
def parts() -> pa.Table:
    """800 parts without their serial numbers."""
    return _draw_parts(800).drop_columns(["serial"])


def _draw_parts(n_rows: int) -> pa.Table:
    """A part decides its number of wheels and roughly its weight; three rows in a hundred are copies."""
    generator = np.random.default_rng(5)
    part = generator.choice(["car", "cart", "bike", "sledge"], n_rows, p=[0.4, 0.3, 0.2, 0.1])
    wheels = np.array([{"car": 4, "cart": 2, "bike": 2, "sledge": 0}[name] for name in part])
    copied = np.arange(n_rows) % 33 == 1
    source = np.arange(n_rows) - copied
    columns = {
        "serial": [f"S{i:05}" for i in range(n_rows)],
        "part": part[source],
        "wheels": wheels[source],
        "weight": (50 * wheels + generator.normal(100, 10, n_rows)).round(1)[source],
        "colour": generator.choice(["red", "blue", "green"], n_rows)[source],
        "age": generator.integers(0, 30, n_rows)[source],
    }
    return pa.table(columns)
