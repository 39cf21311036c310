"""Tables of training runs: what is asked for, done, chosen, and what comes out; docs/benchmark.md explains."""
