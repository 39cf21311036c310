"""Images as the network wants them: decoded once into a memory-mapped cache, then cropped batch by batch."""

from tammes.loading.batches import Batch, Batches, batches
from tammes.loading.decoded import Decoded, check_there, decode
from tammes.loading.samplers import Sampler, Turn, turns

__all__ = ["Batch", "Batches", "Decoded", "Sampler", "Turn", "batches", "check_there", "decode", "turns"]
