"""The theory of Reassessing as benchmarks."""
