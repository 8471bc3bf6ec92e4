"""Prune&Comp in recipes."""
