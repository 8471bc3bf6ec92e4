"""Links between the files of a site, followed as a browser would."""

import os
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit


@cache
def anchors(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\bid="([^"]*)"', path.read_text(encoding="utf-8")))


def followed(site: Path, markdown: bool = False) -> tuple[int, list[str]]:
    """How many links of HTML pages stay within the site, and those that lead nowhere.

    Where the page is still Markdown, its headings have no anchors yet, and the page alone counts.
    """
    site = site.resolve()
    files, checked, dead = {str(path) for path in site.rglob("*") if path.is_file()}, 0, []
    for page in site.rglob("*.html"):
        for href in set(re.findall(r'(?:href|src)="([^"]*)"', page.read_text(encoding="utf-8"))):
            parts = urlsplit(href)
            if parts.scheme:
                continue
            checked += 1
            target = os.path.normpath(page.parent / unquote(parts.path)) if parts.path else str(page)
            anchor = unquote(parts.fragment)
            there = target in files or markdown and f"{os.path.splitext(target)[0]}.md" in files
            if target in files and anchor and "=" not in anchor:  # with = it is for the page's script
                there = anchor in anchors(Path(target))
            if not there:
                dead.append(f"{page.relative_to(site)}: {href}")
    return checked, dead
