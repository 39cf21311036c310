"""Exact nearest neighbours, top-k, distance tables and K-means, in bounded memory."""
