"""Declare tables as data: rows, columns, comparisons, subjects and the numbers that papers print."""
