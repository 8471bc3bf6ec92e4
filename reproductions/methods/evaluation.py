"""Benchmarks beyond lm-eval's tasks and perplexity."""
