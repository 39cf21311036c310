"""Images as the network wants them: decoded once into a memory-mapped cache, then cropped batch by batch."""

from tammes.loading.batches import Batch, Batches, Sampler, batches
from tammes.loading.decoded import Cached, Decoded, cached, clear, decode

__all__ = ["Batch", "Batches", "Cached", "Decoded", "Sampler", "batches", "cached", "clear", "decode"]
