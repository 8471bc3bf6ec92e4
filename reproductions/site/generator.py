"""The site as Sphinx builds it: one navigation and one search over documents, notebooks, API reference and results.

This module is an extension of Sphinx: `setup` registers our pages as sources, and formulas as MathML.
"""

import functools
import importlib
import posixpath
import re
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import furo  # noqa: F401 - Sphinx loads theme and reader by name; here, so that it is said early which one is missing
import myst_nb  # noqa: F401
from docutils import nodes
from latex2mathml.converter import convert
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.parsers import Parser
from sphinx.util.docutils import docutils_namespace, patch_docutils

from common.console.progress import track
from reproductions.site.documents import API

HERE = Path(__file__).parent
STANDING_FOR = {"README.md": "index", "papers/AUDIT.md": "audit"}  # the site's pages in place of documents
LIGHT = {
    **dict.fromkeys(("color-brand-primary", "color-brand-content", "color-brand-visited"), "#00578a"),
    **{"line": "#d4d8dd", "yes": "#00795c", "no": "#a33d00", "open": "#6b727b", "mark": "#a33d00", "data": "#0072b2"},
    **{"fill-yes": "#00795c", "fill-no": "#b84f00", "fill-noise": "#6b7078"},
    **{"on-fill": "#ffffff", "kept": "#bcd9ea", "paper": "#ffffff"},
}
DARK = {
    **dict.fromkeys(("color-brand-primary", "color-brand-content", "color-brand-visited"), "#7cc0ee"),
    **{"line": "#3a4149", "yes": "#5fcfa8", "no": "#ff9f66", "open": "#9aa3ad", "mark": "#ff9f66", "data": "#4aa3df"},
    **{"fill-yes": "#5fcfa8", "fill-no": "#ff9f66", "fill-noise": "#aab2bb"},
    **{"on-fill": "#14171a", "kept": "#2f5e7c", "paper": "#f4f4f2"},
}


def build(source: Path, folder: Path) -> None:
    """Build the pages of a folder of sources into another folder; warnings go to stderr."""
    settings = {
        "project": "Layer pruning, reproduced",
        "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", __name__],
        "exclude_patterns": ["recipes/**"],  # a thousand pages, which neither navigation nor search has
        "add_module_names": False,
        "default_role": "py:obj",
        "napoleon_use_ivar": True,  # an attribute whose default is a function would be described twice
        "nb_execution_mode": "off",
        "myst_enable_extensions": ["dollarmath"],
        "myst_heading_anchors": 4,
        "suppress_warnings": ["myst.header", "myst.xref_missing"],
        "viewcode_line_numbers": True,
        "html_theme": "furo",
        "html_title": "Layer pruning, reproduced",
        "html_theme_options": {"light_css_variables": LIGHT, "dark_css_variables": DARK},
        "html_static_path": [str(HERE / "static")],
        "html_css_files": ["style.css"],
        "html_js_files": ["report.js"],
        "html_math_renderer": "mathml",
        "html_show_copyright": False,
        "html_copy_source": False,
        "html_use_index": False,
        "html_domain_indices": False,
        "html_show_search_summary": False,  # a page opened from disk may not read other pages
    }
    bar = track(None, "building the site", unit="step", each=True)
    with bar, patch_docutils(), docutils_namespace():
        app = Sphinx(
            source, None, folder, source / ".doctrees", "html", settings, status=None, warning=sys.stderr, freshenv=True
        )
        for event, verb in (("source-read", "reading"), ("html-page-context", "writing")):
            app.connect(event, functools.partial(_step, bar, verb))
        app.build(force_all=True)


def _step(bar: track, verb: str, app: Sphinx, page: str, *unused) -> None:
    """Show which page is read or written."""
    bar.note(f"{verb} {page}")
    bar.update()


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the site's extensions of Sphinx."""
    app.add_source_suffix(".html", "fragment")
    app.add_source_parser(Fragment)
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_formula, None))
    app.connect("builder-inited", _import_lazy_names)
    app.connect("autodoc-process-docstring", _plain_bars)
    app.connect("doctree-read", _document_links)
    app.connect("html-collect-pages", _recipes)
    return {"parallel_read_safe": False, "parallel_write_safe": False}


class Fragment(Parser):
    """Parser of a page of results: HTML with one ``h1``, split into sections at each ``<h2 id=...>``."""

    supported = ("fragment",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Append the page's sections to a document."""
        env, (title, text) = document.settings.env, _parts(inputstring)
        first, *rest = re.split(r'<h2 id="([^"]+)">(.*?)</h2>', text)
        page = _section("", title, first)
        for anchor, heading, content in zip(*(rest[at::3] for at in range(3)), strict=True):
            page += _section(anchor, heading, content)
        document += page
        env.metadata[env.docname] |= {"orphan": True, "hide-toc": True}


def _parts(text: str) -> tuple[str, str]:
    """Return a page's title and what else it has."""
    before, title, after = re.split(r"<h1>(.*?)</h1>", text, maxsplit=1, flags=re.S)
    return title, before + after


def _section(anchor: str, heading: str, content: str) -> nodes.section:
    title = nodes.title("", unescape(re.sub(r"<[^>]*>", "", heading)).strip())
    return nodes.section("", title, nodes.raw("", content, format="html"), ids=[anchor or "page"], names=[])


def _inline_formula(writer: nodes.NodeVisitor, node: nodes.Element) -> None:
    """Write a TeX formula as MathML, which browsers display natively."""
    writer.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def _formula(writer: nodes.NodeVisitor, node: nodes.Element) -> None:
    drawn = convert(node.astext(), display="block")
    writer.body.append(f'<div class="wide formula" role="region" aria-label="Formula" tabindex="0">{drawn}</div>')
    raise nodes.SkipNode


def _import_lazy_names(app: Sphinx) -> None:
    """Give packages the names that they import on demand, since autodoc documents names that are there."""
    for package in map(importlib.import_module, API):
        vars(package).update({name: getattr(package, name) for name in getattr(package, "__all__", ())})


def _plain_bars(app: Sphinx, kind: str, name: str, described: object, options: object, lines: list[str]) -> None:
    """Keep reStructuredText from reading |X| in a docstring as a substitution."""
    lines[:] = [re.sub(r"(``.*?``)|\|", lambda match: match[1] or r"\|", line) for line in lines]


def _document_links(app: Sphinx, tree: nodes.document) -> None:
    """Lead a document's links to the pages that stand for other documents; links to other files become text."""
    for link in list(tree.findall(addnodes.pending_xref)):
        path, _, anchor = link["reftarget"].partition("#")
        if link["reftype"] != "myst" or link["refdomain"] == "doc" or not re.search("[./]", path):
            continue
        folder = posixpath.dirname(app.env.docname)
        if standing := STANDING_FOR.get(posixpath.normpath(posixpath.join(folder, path))):
            address = posixpath.relpath(f"{standing}.html", folder) + f"#{anchor}" * bool(anchor)
            link.replace_self(nodes.reference("", "", *link.children, refuri=address))
        else:
            link.replace_self(link.children)


def _recipes(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """Yield the pages of recipes."""
    # The navigation is the same on each of them.
    toctree = functools.cache(functools.partial(app.builder._get_local_toctree, "recipes/any"))
    for path in sorted((Path(app.srcdir) / "recipes").glob("*.html")):
        text = path.read_text(encoding="utf-8")
        yield f"recipes/{path.stem}", {"title": _parts(text)[0], "body": text, "toctree": toctree}, "page.html"
