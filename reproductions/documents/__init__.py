"""Write README, docs and notebooks from the published records."""
