"""The tables and figures of the papers: declared here, measured by ``runner``, shown from records."""
