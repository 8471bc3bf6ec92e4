"""Measuring models: perplexity protocols, multiple-choice suites through lm-eval, and the papers' scores.

Nothing is imported here: tables read `scores` and `suites` without torch, which `perplexity` needs, and lm-eval, which
`multiple_choice` and `harness` need.
"""
