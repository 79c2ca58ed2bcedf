"""What the service counts, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from tabmoco.serve.batcher import Batcher
from tabmoco.serve.live import Live

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)


class Metrics:
    """Counters of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter("tabmoco_requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "tabmoco_request_seconds",
            "From the head of a request to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.rows = Counter("tabmoco_rows", "Rows answered.", ["route"], registry=self.registry)
        self.call_requests = Histogram(
            "tabmoco_call_requests", "Requests answered in one call of the model.", buckets=ROWS, registry=self.registry
        )
        self.call_rows = Histogram(
            "tabmoco_call_rows", "Rows of one call of the model.", buckets=ROWS, registry=self.registry
        )

    def see_call(self, n_jobs: int, n_rows: int) -> None:
        self.call_requests.observe(n_jobs)
        self.call_rows.observe(n_rows)

    def watch(self, live: Live, batcher: Batcher) -> None:
        """Report what is being served and what waits, too."""
        self.registry.register(_State(live, batcher))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _State(Collector):
    """Figures that are looked up when asked for."""

    def __init__(self, live: Live, batcher: Batcher) -> None:
        self._live = live
        self._batcher = batcher

    def collect(self) -> Iterator[GaugeMetricFamily | InfoMetricFamily]:
        generation = self._live.current
        yield InfoMetricFamily(
            "tabmoco_model",
            "The model that is being served.",
            value={"fingerprint": generation.fingerprint, "schema": generation.schema_version},
        )
        for name, told, value in (
            ("tabmoco_model_loaded_seconds", "When the model was loaded, since 1970.", generation.loaded_at),
            ("tabmoco_waiting_requests", "Requests that wait for the model.", self._batcher.n_waiting_jobs),
            ("tabmoco_waiting_rows", "Rows that wait for the model.", self._batcher.n_waiting_rows),
            ("tabmoco_reloads", "Models that took the place of another.", self._live.n_reloads),
            ("tabmoco_reload_failures", "Models that could not be loaded.", self._live.n_failures),
        ):
            yield GaugeMetricFamily(name, told, value=value)
