"""Limits on what a client may request."""

from dataclasses import dataclass, replace
from math import isfinite

from tammes.errors import UserError

_BYTES_A_PIXEL = 20  # of the kinds of image that take most


@dataclass(frozen=True)
class Limits:
    """Bounds of what a client may ask for.

    Attributes:
        upload_bytes: of a body with an image; `other_bytes`: of any other.
        upload_pixels: of an image, by its header, before it is decoded.
        uploads_at_once: bodies and images that are in memory at the same time; further ones wait for their turn. One
            client never has all of these slots.
        rate: requests a second of one client, over time; a burst may be `burst` times that. 0: no limit.
        seconds: that a request may take, without its upload.
        upload_seconds: that a body may take to arrive.
        wait_seconds: that a request waits for its turn before it is told to come again.
        header_seconds: that a connection may take to say what it wants.
        decode_seconds: that decoding an image may take; `decode_bytes`: the memory it may take.
        connections: at the same time.
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
