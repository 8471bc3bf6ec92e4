"""RACE as LinearPatch and Prune&Comp measured it."""
