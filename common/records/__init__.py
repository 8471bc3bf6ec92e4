"""The record of a measurement, and the store of records."""
