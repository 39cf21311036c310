"""Networks: backbones and their weights, pooling, heads, whitening, cached features, and the Embedder."""
