"""Metrics of a server, for Prometheus."""

from collections.abc import Callable
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

Metric = TypeVar("Metric", Counter, Gauge, Histogram)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServerMetrics:
    """Metrics of a server; labels are names of routes, runs and encoders, never client input.

    Examples
    --------
    >>> metrics = ServerMetrics()
    >>> metrics.rejected("queue")
    >>> 'promptboost_rejected_total{reason="queue"} 1.0' in metrics.text()
    True
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def make(kind: type[Metric], name: str, about: str, *labels: str, **options: Any) -> Metric:
            return kind(f"promptboost_{name}", about, labels, registry=registry, **options)

        self._requests = make(
            Counter,
            "requests",
            "Requests, by route, method and status.",
            "route",
            "method",
            "status",
        )
        self._seconds = make(
            Histogram,
            "request_seconds",
            "Time from the head of a request to the end of its response.",
            "route",
            buckets=_SECONDS,
        )
        self._images = make(Counter, "images", "Predicted images, by run.", "run")
        self._rejected = make(
            Counter, "rejected", "Refused requests and images, by reason.", "reason"
        )
        self._batches = make(
            Histogram, "batch_images", "Images per batch of an encoder.", "encoder", buckets=_SIZES
        )
        self._encoder_seconds = make(
            Counter, "encoder_seconds", "Time spent by an encoder.", "encoder"
        )
        self._queue = make(
            Gauge, "queue_images", "Images that wait for an encoder or are in it.", "encoder"
        )
        self._running = make(Gauge, "requests_in_hand", "Running requests.")
        self._reloads = make(Counter, "reloads", "Attempts to load a version.", "run", "outcome")
        self._version = make(Gauge, "version", "Number of the current version.", "run")

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def images(self, run: str, number: int) -> None:
        """Count predicted images."""
        self._images.labels(run).inc(number)

    def rejected(self, reason: str) -> None:
        """Count a refused request or image."""
        self._rejected.labels(reason).inc()

    def batch(self, encoder: str, number: int, seconds: float) -> None:
        """Count a batch."""
        self._batches.labels(encoder).observe(number)
        self._encoder_seconds.labels(encoder).inc(seconds)

    def version(self, run: str, number: int) -> None:
        """Count a loaded version, which is now current."""
        self._version.labels(run).set(number)
        self._reloads.labels(run, "loaded").inc()

    def broken(self, run: str) -> None:
        """Count a version that could not be loaded."""
        self._reloads.labels(run, "broken").inc()

    def watch_queue(self, encoder: str, length: Callable[[], int]) -> None:
        """Read the length of a queue whenever metrics are read."""
        self._queue.labels(encoder).set_function(length)

    def forget_queue(self, encoder: str) -> None:
        """Remove the queue of a closed encoder."""
        self._queue.remove(encoder)

    def watch_requests(self, number: Callable[[], int]) -> None:
        """Read the number of running requests whenever metrics are read."""
        self._running.set_function(number)

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry).decode()
