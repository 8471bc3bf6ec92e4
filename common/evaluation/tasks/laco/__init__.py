"""LaCo's benchmarks."""
