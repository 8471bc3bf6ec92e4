"""The results as a static site: ``python -m reproductions.site`` (``make report``) writes ``report/``.

Pages are made from records, reported numbers and the audit alone; nothing is measured. They open from disk: no page loads
anything from elsewhere, and data that a page's script needs lies in script files, since a page opened from disk may read no
other.
"""
