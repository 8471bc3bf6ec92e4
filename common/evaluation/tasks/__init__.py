"""Tasks of this project in lm-eval's form."""
