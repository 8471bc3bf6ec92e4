"""From missing cells to records: which to measure, by whom, and how."""
