"""The server's metrics for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        here = self._registry
        self.requests = Counter("tammes_requests", "Requests answered", ["route", "method", "status"], registry=here)
        self.seconds = Histogram(
            "tammes_request_seconds",
            "From a request to its answer's end",
            ["route"],
            buckets=_SECONDS,
            registry=here,
        )
        self.under_way = Gauge("tammes_requests_under_way", "Requests that are being answered", registry=here)
        self.upload_bytes = Counter("tammes_upload_bytes", "Bytes of images received", registry=here)
        self.decode_seconds = Histogram(
            "tammes_decode_seconds", "From a file to pixels, with the wait for a turn", buckets=_SECONDS, registry=here
        )
        self.embed_seconds = Histogram(
            "tammes_embed_seconds", "From pixels to a vector, with the wait for a turn", buckets=_SECONDS, registry=here
        )
        self.search_seconds = Histogram(
            "tammes_search_seconds", "From a vector to its neighbours", buckets=_SECONDS, registry=here
        )
        self.items = Gauge("tammes_gallery_items", "Images in the gallery", registry=here)
        self.renewed = Counter("tammes_gallery_renewals", "Times that the gallery was read again", registry=here)

    def text(self) -> bytes:
        return generate_latest(self._registry)
