"""LaCo in recipes."""
