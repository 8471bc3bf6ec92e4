"""Tasks of our own in lm-eval's form."""
