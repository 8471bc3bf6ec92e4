"""The finished site: one navigation and one search over documents, notebooks, API and results, without a network."""

import contextlib
import io
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from site_links import followed

from common.console import progress
from common.utils.errors import UserError
from common.utils.paths import ROOT
from reproductions.site import generator, pages
from reproductions.spec import registry

LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video)[^>]*\bsrc="(?!data:)[a-z]+:|<link[^>]*href="(?!data:)[a-z]+:|import\(\s*["']https?:"""
)
FORMULAS = re.compile(r"\$\$.+?\$\$|\$[^$]+\$", re.S)


def builds_the_site(test):
    return pytest.mark.slow(pytest.mark.timeout(3000)(test))


@cache
def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "lxml")


def navigation(page: Path) -> list[str]:
    return [link.get_text() for link in parsed(page).select(".sidebar-tree a")]


def search_index(site: Path) -> dict:
    return json.loads(re.fullmatch(r"Search\.setIndex\((.*)\)", (site / "searchindex.js").read_text(), re.S)[1])


def loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not LOADED.search(page.read_text(encoding="utf-8")), page
    for file in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", file.read_text(encoding="utf-8")), file
    for file in site.rglob("*.svg"):
        assert not re.search(r'(?:href|src)="https?:', file.read_text(encoding="utf-8")), file


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A site of one page of each kind."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    texts = {
        "index.md": "# Front\n\n```{toctree}\ndocs/guide\ntargets/table\npapers/laco/README\n```\n",
        "docs/guide.md": "# Guide\n\nSee [front](../README.md), [licence](../LICENSE), [there](#there) and $a_1$.\n\n"
        '<a id="there"></a>\n\n$$\n\\frac{a}{b_1}\n$$\n',
        "targets/table.html": '<h1>A table</h1><p>unmistakable</p>\n<h2 id="numbers">Numbers &amp; more</h2><p>x</p>',
        "recipes/abc.html": '<p class="crumb">x</p><h1>A recipe</h1><a href="../targets/table.html#numbers">t</a>',
        "papers/laco/README.md": "# Paper\n\n```{toctree}\nlaco\n```\n",
    }
    for name, text in texts.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    output = {"output_type": "stream", "name": "stdout", "text": "stored\n"}
    code = {"cell_type": "code", "metadata": {}, "execution_count": 1, "source": "1 / 0", "outputs": [output]}
    cells = [{"cell_type": "markdown", "metadata": {}, "source": "# Book\n\n$\\alpha$"}, code]
    book = {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 4}
    (source / "papers" / "laco" / "laco.ipynb").write_text(json.dumps(book))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as warnings:
        patch.setattr(generator, "API", ())
        patch.setattr(progress, "MOMENT", 0)  # a line for every step
        generator.build(source, folder)
    lines = warnings.getvalue().splitlines()
    assert all(line.startswith("building the site: step ") for line in lines), lines
    for step in ("reading docs/guide", "writing docs/guide", "writing recipes/abc"):
        assert sum(step in line for line in lines) == 1
    return folder


def test_every_page_has_the_same_navigation_and_search(small):
    kinds = ("index", "docs/guide", "targets/table", "recipes/abc", "papers/laco/laco")
    for name in kinds:
        page = small / f"{name}.html"
        assert navigation(page) == ["Guide", "A table", "Paper", "Book"], name
        assert parsed(page).select_one("form[role=search]"), name
    assert followed(small)[1] == []


def test_the_search_finds_documents_notebooks_and_results(small):
    index = search_index(small)
    assert {"Guide", "A table", "Book"} <= set(index["titles"])
    assert index["docnames"][index["terms"]["unmistak"]] == "targets/table"
    assert not any(name.startswith("recipes") for name in index["docnames"])


def test_a_page_of_results_has_sections_with_their_anchors(small):
    page = parsed(small / "targets" / "table.html")
    assert page.select_one("section#numbers > h2").get_text().startswith("Numbers & more")
    assert [h1.get_text().rstrip("¶#") for h1 in page.select("h1")] == ["A table"]


def test_formulas_are_drawn_by_the_browser(small):
    inline, block = (str(formula) for formula in parsed(small / "docs" / "guide.html").select("math"))
    assert "<msub><mi>a</mi><mn>1</mn></msub>" in inline and 'display="inline"' in inline
    assert "<mfrac><mrow><mi>a</mi></mrow><mrow><msub><mi>b</mi><mn>1</mn></msub></mrow></mfrac>" in block
    assert 'display="block"' in block
    book = parsed(small / "papers" / "laco" / "laco.html")
    assert book.math.get_text() == "α" and "stored" in book.get_text() and "ZeroDivisionError" not in book.get_text()


def test_links_of_documents_lead_to_pages_of_the_site(small):
    guide = parsed(small / "docs" / "guide.html")
    links = {link.get_text(): link["href"] for link in guide.select("article p a[href]")}
    assert links["front"] == "../index.html"
    assert links["there"] == "#there" and "licence" not in links
    assert "licence" in guide.article.get_text()


def test_nothing_is_loaded_from_elsewhere(small):
    loads_nothing_from_elsewhere(small)


@pytest.mark.parametrize("package", ["sphinx", "furo", "myst_nb"])
def test_a_missing_package_is_named_with_its_remedy(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, generator.__name__)
    monkeypatch.delattr("reproductions.site.generator")
    with pytest.raises(UserError, match=f"{package} is not installed.*make setup"):
        pages.build(None, tmp_path / "report")


@builds_the_site
def test_every_link_of_the_finished_site_resolves(finished):
    checked, dead = followed(finished)
    assert dead == [] and checked > 20_000


@builds_the_site
def test_the_finished_site_loads_nothing_from_elsewhere(finished):
    loads_nothing_from_elsewhere(finished)


@builds_the_site
def test_documents_results_and_the_api_reference_are_in_navigation_and_search(finished):
    index = search_index(finished)
    documents = {f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md")}
    results = {f"targets/{name}" for name in registry.targets()} | {"records", "compare", "audit"}
    assert documents | results | {"api/papers.linearpatch", "papers/laco/laco"} <= set(index["docnames"])
    links = {link["href"] for link in parsed(finished / "index.html").select(".sidebar-tree a")}
    below = {f"{name}.html" for name in documents | {"records", "compare", "audit", "api/papers.linearpatch"}}
    assert below <= links
    documented = parsed(finished / "api" / "extensions.refit.html").select("dt[id]")
    assert {"refit", "Refit"} <= {tag["id"].rpartition(".")[2] for tag in documented}


@builds_the_site
def test_the_formulas_of_notebooks_are_drawn_by_the_browser(finished):
    """Every formula of a notebook's source is MathML on its page, and no TeX is left in its text."""
    for book in ROOT.glob("papers/*/*.ipynb"):
        cells = json.loads(book.read_text())["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        page = parsed(finished / book.relative_to(ROOT).with_suffix(".html"))
        formulas = page.select("math")
        assert len(formulas) == sum(len(FORMULAS.findall(text)) for text in texts) > 0
        assert not any("\\" in formula.get_text() for formula in formulas)  # a command that was not understood
        prose = " ".join(p.get_text() for p in page.select("article section > p, article section > ul"))
        assert "$" not in prose and "\\" not in prose
        assert all(img.get("alt") for img in page.select("article img"))
