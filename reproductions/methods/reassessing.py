"""The metrics and the fine-tuning of Reassessing in recipes."""
