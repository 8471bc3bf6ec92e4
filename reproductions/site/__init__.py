"""Documents and results as one static site: ``python -m reproductions.site`` (``make report``) writes ``report/``.

`pages` writes the pages of results as sources. `documents` adds Markdown, notebooks and the API reference. `generator` has
Sphinx build them all, with one navigation and one search.

Pages of results are made from records, reported numbers and the audit alone. All pages open from disk: no page loads
anything from elsewhere, and data that a page's script needs lies in script files, since a page opened from disk may read no
other.
"""
