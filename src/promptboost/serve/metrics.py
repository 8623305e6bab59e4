"""Metrics of a server, for Prometheus."""

from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServerMetrics:
    """Metrics of a server; labels are names of routes, runs and encoders, never client input."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        counter = partial(Counter, namespace="promptboost", registry=registry)
        gauge = partial(Gauge, namespace="promptboost", registry=registry)
        histogram = partial(Histogram, namespace="promptboost", registry=registry)
        labels = "route", "method", "status"
        self.requests = counter("requests", "Requests, by route, method and status.", labels)
        about = "Time from the head of a request to the end of its response."
        self.request_seconds = histogram("request_seconds", about, ["route"], buckets=_SECONDS)
        self.images = counter("images", "Predicted images, by run.", ["run"])
        self.rejected = counter("rejected", "Refused requests and images, by reason.", ["reason"])
        about = "Images per batch of an encoder."
        self.batch_images = histogram("batch_images", about, ["encoder"], buckets=_SIZES)
        self.encoder_seconds = counter("encoder_seconds", "Time spent by an encoder.", ["encoder"])
        about = "Images that wait for an encoder or are in it."
        self.queue_images = gauge("queue_images", about, ["encoder"])
        self.running = gauge("requests_in_hand", "Running requests.")
        self.reloads = counter("reloads", "Attempts to load a version.", ["run", "outcome"])
        self.version = gauge("version", "Number of the current version.", ["run"])

    def loaded(self, run: str, number: int) -> None:
        """Count a loaded version, which is now current."""
        self.version.labels(run).set(number)
        self.reloads.labels(run, "loaded").inc()

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry).decode()
