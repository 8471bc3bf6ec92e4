"""What README, docs and notebooks say of the published records."""
