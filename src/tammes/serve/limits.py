"""Limits on requests."""

from dataclasses import dataclass, replace
from math import isfinite

from tammes.errors import UserError

_BYTES_A_PIXEL = 20  # of the kinds of image that take most


@dataclass(frozen=True)
class Limits:
    """Limits on requests.

    Attributes:
        upload_bytes: size of a body with an image; `other_bytes`: of any other body.
        upload_pixels: pixels of an image, checked in its header before decoding.
        uploads_at_once: concurrent uploads in memory; further ones wait. A single client never gets all slots.
        rate: average requests per second of one client, with bursts of `burst` times that; 0 for no limit.
        seconds: time for a request without its upload.
        upload_seconds: time for a body to arrive.
        wait_seconds: time that an upload waits for a slot before a 503.
        header_seconds: time for the headers of a request.
        decode_seconds: time for decoding an image; `decode_bytes`: memory for it.
        connections: concurrent connections.
        remembered: uploaded images that are kept in memory, so that their address can be shared.
    """

    upload_bytes: int = 20_000_000
    other_bytes: int = 2_000_000
    upload_pixels: int = 20_000_000
    uploads_at_once: int = 4
    rate: float = 30.0
    burst: float = 5.0
    seconds: float = 30.0
    upload_seconds: float = 20.0
    wait_seconds: float = 5.0
    header_seconds: float = 10.0
    decode_seconds: float = 10.0
    decode_bytes: int = 400_000_000
    connections: int = 256
    remembered: int = 500

    def with_room_for_its_pixels(self) -> "Limits":
        """The same, with as much memory as decoding the largest image takes."""
        return replace(self, decode_bytes=max(self.decode_bytes, _BYTES_A_PIXEL * self.upload_pixels))

    def __post_init__(self) -> None:
        if not isfinite(self.rate) or self.rate < 0:
            raise UserError(f"`rate` must be 0 (no limit) or more requests a second, got {self.rate:g}.")
        if self.upload_bytes < 1 or self.upload_pixels < 1:
            raise UserError("`max_upload` and `max_pixels` must be numbers above 0: an image has to fit.")
