"""Benchmarks of kalprox and its peers in one run: `python -m benchmarks`, or `make bench`."""
