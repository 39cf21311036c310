"""The server's metrics for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = here = CollectorRegistry()
        ProcessCollector(registry=here)
        PlatformCollector(registry=here)

        def seconds(name: str, about: str, *labels: str) -> Histogram:
            return Histogram(f"tammes_{name}_seconds", about, labels, buckets=_SECONDS, registry=here)

        self.requests = Counter("tammes_requests", "Requests answered", ["route", "method", "status"], registry=here)
        self.seconds = seconds("request", "From a request to its answer's end", "route")
        self.under_way = Gauge("tammes_requests_under_way", "Requests that are being answered", registry=here)
        self.upload_bytes = Counter("tammes_upload_bytes", "Bytes of images received", registry=here)
        self.decode_seconds = seconds("decode", "From a file to pixels, with the wait for a turn")
        self.embed_seconds = seconds("embed", "From pixels to a vector, with the wait for a turn")
        self.search_seconds = seconds("search", "From a vector to its neighbours")
        self.items = Gauge("tammes_gallery_items", "Images in the gallery", registry=here)
        self.renewed = Counter("tammes_gallery_renewals", "Times that the gallery was read again", registry=here)

    def text(self) -> bytes:
        return generate_latest(self._registry)
