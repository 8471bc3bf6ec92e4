"""Provide what every part uses and what knows no model: errors, progress, caches, files written whole, locks, options."""
