"""Where weights come from and the forms of their files: hub, wheels, safetensors, configs for other programs."""
