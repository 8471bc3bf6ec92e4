"""Tables and lists of values from records: for the terminal, Markdown, CSV, LaTeX and JSON."""
