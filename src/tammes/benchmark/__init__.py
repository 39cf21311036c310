"""Benchmarks: tables of training runs, with plan, cells, search and results; docs/benchmark.md explains."""
