"""The site in a real browser: ``make test-report``. Needs Playwright and a Chromium, and is skipped where there is none.

Screenshots go to the folder that LAYERLAB_SCREENSHOTS names, if it does.
"""

import os
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from common.records.results import NOWHERE, Recipe, Store
from reproductions.render.evidence import Evidence, Loaded
from reproductions.site import pages
from reproductions.site.recipes import is_share
from reproductions.spec import registry

HOW = "`make setup-browser` installs Playwright; a Chromium comes with the system or with `playwright install chromium`"
playwright = pytest.importorskip("playwright.sync_api", reason=f"no Playwright: {HOW}")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS = (360, 900, 1600)
STORE = Store(NOWHERE)
TOY = [one for one in STORE.published if one["recipe"]["model"] == "standin"]
OUTCOMES = Counter(one["recipe_hash"] for one in TOY if one["stderr"])
MOST_OUTCOMES = sorted(OUTCOMES, key=lambda name: (-OUTCOMES[name], name))  # those with most to compare first
KINDS = {
    "front": "index.html",
    "paper": "papers/prunecomp/README.html",
    "table": "targets/table1-linearpatch.html",
    "figure": "targets/figure1-prunecomp.html",
    "recipe": f"recipes/{MOST_OUTCOMES[0]}.html",
    "audit": "audit.html",
    "records": "records.html",
    "compare": f"compare.html#a={MOST_OUTCOMES[0]}&b={MOST_OUTCOMES[1]}",
    "document": "docs/comparing.html",
    "notebook": "papers/laco/laco.html",
    "reference": "api/papers.laco.html",
    "code": "_modules/papers/linearpatch/patch.html",
    **({"league": "targets/league.html"} if "league" in registry.targets() else {}),
}


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("LAYERLAB_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with playwright.sync_playwright() as running:
        try:
            # no sandbox: tests may run as root, and the pages are ours
            chromium = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium starts ({str(error).splitlines()[0]}): {HOW}")
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "report"
    pages.build(Evidence(Loaded(None)), folder)
    return folder


@pytest.fixture
def opened(browser, site):
    """Opens pages; whatever a console, a script or a request complains of fails the test."""
    contexts, complaints = [], []

    def go(name: str, width: int = 1200, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
        page.goto(f"{site.as_uri()}/{name}")
        return page

    yield go
    for context in contexts:
        context.close()
    assert not complaints


def keep(page, name: str) -> None:
    if folder := os.environ.get("LAYERLAB_SCREENSHOTS"):
        height = min(page.evaluate("document.documentElement.scrollHeight"), 3000)
        page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
        page.screenshot(path=Path(folder) / f"{name}.png", timeout=120_000)


@pytest.mark.parametrize("kind", KINDS)
def test_no_page_is_wider_than_its_window(opened, kind):
    for width in WIDTHS:
        page = opened(KINDS[kind], width, "dark" if width == 900 else "light")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        keep(page, f"{kind}-{width}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("notebook", "reference", "code")])
def test_axe_finds_nothing_serious(opened, kind, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=f"no axe: {HOW}")
    page = opened(KINDS[kind], 1200, scheme)
    page.wait_for_timeout(300)
    # without the option it asks for files itself
    violations = axe.Axe().run(page, "article", options={"preload": False}).response["violations"]
    serious = [violation for violation in violations if violation["impact"] in ("serious", "critical")]
    assert not serious, [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in serious]


def test_tabs_by_mouse_and_by_keyboard(opened):
    page = opened(KINDS["table"])
    tabs = page.get_by_role("tab")
    tabs.filter(has_text="toy model").click()
    assert page.locator("#on-standin").is_visible() and page.locator("#on-paper").is_hidden()
    page.keyboard.press("ArrowRight")
    assert page.locator("#on-paper").is_visible() and page.locator("#on-standin").is_hidden()
    assert tabs.last.get_attribute("aria-selected") == "true"


def test_a_column_sorts_both_ways(opened):
    page = opened(KINDS["table"] + "#on-standin")
    table = page.locator("#on-standin table")
    head = table.locator("thead th").filter(has_text=re.compile("^RP"))
    at = head.evaluate("th => th.cellIndex")
    values = []
    for _ in range(2):
        head.get_by_role("button").click()
        texts = table.locator(f"tbody tr > :nth-child({at + 1})").all_inner_texts()
        values.append([float(number[0]) for text in texts if (number := re.findall(r"^\d+\.\d+", text))])
    assert values[0] == sorted(values[0]) and values[1] == sorted(values[0], reverse=True) and len(values[0]) > 5
    assert head.get_attribute("aria-sort") == "descending"


def test_a_cell_leads_to_its_recipe_which_has_the_number(opened):
    page = opened(KINDS["table"] + "#on-standin")
    link = page.locator("#on-standin tbody tr").nth(2).locator("a.quiet").nth(1)
    number = link.inner_text()
    link.click()
    page.wait_for_url("**/recipes/*.html*")
    assert page.locator("td").filter(has_text=re.compile(rf"^{re.escape(number)}$")).count() >= 1
    assert "FORCE=1" in page.locator(".command").inner_text()


def test_two_clicks_from_the_front_to_a_command(opened):
    page = opened("index.html")
    page.get_by_label("Find").fill("table 6 size")
    page.get_by_role("link", name=re.compile("^Table 6: size and time")).click()
    assert "make table6-linearpatch" in page.locator(".command").inner_text()


@pytest.mark.skipif("league" not in KINDS, reason="there is no league yet")
def test_the_league_is_narrowed_and_sorted(opened):
    page = opened("targets/league.html#on-standin")
    panel = page.locator("#on-standin")
    shown = panel.locator("tbody tr:visible")
    measured = shown.count()
    assert measured and panel.locator("tbody tr[data-partial]:visible").count() == 0
    size = panel.locator("select").first.input_value()
    places = panel.locator("thead th").all_inner_texts()
    ranking = next(at for at, text in enumerate(places) if text.startswith("PPL AVG"))
    rows = [text.split("\t") for text in shown.all_inner_texts()]
    assert all(cells[1] == size for cells in rows[1:]) and rows[0][1].startswith("0/")
    values = [float(shown.nth(at).locator(f":nth-child({ranking + 1})").inner_text()) for at in range(1, 6)]
    assert values == sorted(values)
    assert not panel.get_by_role("columnheader", name=re.compile("^seconds")).is_visible()
    panel.locator("[data-row-minor]").check()
    assert panel.get_by_role("columnheader", name=re.compile("^seconds")).is_visible()
    panel.locator("[data-row-full]").uncheck()
    panel.locator("select").first.select_option("")
    everything = shown.count()
    panel.locator("[data-row-without]").check()
    assert measured < shown.count() < everything
    assert not any("(trained)" in text for text in shown.locator("th").all_inner_texts())
    panel.locator("[data-row-plain]").check()
    at = panel.locator("thead th").filter(has_text=re.compile("^loaded by")).evaluate("th => th.cellIndex")
    assert all("Transformers" in text for text in shown.locator(f":nth-child({at + 1})").all_inner_texts())
    panel.locator("[data-row-plain]").uncheck()
    panel.locator("[data-row-search]").fill("ghosted")
    names = shown.locator("th").all_inner_texts()
    assert names and all("Ghosted" in name for name in names)
    page.locator("#on-standin thead th").filter(has_text=re.compile("^n/N")).get_by_role("button").click()
    shares = [int(text.split("/")[0]) for text in shown.locator("td:nth-child(2)").all_inner_texts()]
    assert shares == sorted(shares)


def test_audit_search_and_select(opened):
    page = opened("audit.html")
    everything = page.locator("article.finding:visible").count()
    page.locator("select[data-key=paper]").select_option("LaCo")
    narrowed = page.locator("article.finding:visible")
    assert 0 < narrowed.count() < everything
    assert all(name.startswith("LC-") for name in narrowed.evaluate_all("all => all.map(one => one.id)"))
    page.get_by_role("searchbox").fill("no such words")
    assert narrowed.count() == 0 and page.locator("[data-count=findings]").inner_text().startswith("0 of")


def test_all_records_search_sort_and_page(opened):
    page = opened("records.html")
    page.locator("#values tbody tr").first.wait_for()
    ranked = [float(text) for text in page.locator("#values tbody tr > :nth-child(7)").all_inner_texts()]
    assert ranked == sorted(ranked) and len(ranked) == 100  # perplexities, the best first
    sizes = page.locator("#values tbody tr > :nth-child(4)").all_inner_texts()
    first = next(at for at, size in enumerate(sizes) if not size.startswith("0/"))
    assert "best" in page.locator("#values tbody tr").nth(first).locator(":nth-child(7)").get_attribute("class")
    for name in ("model", "benchmark", "key"):
        page.locator(f"[data-values-select={name}]").select_option("")
    page.get_by_role("button", name="Next").click()
    assert "Page 2" in page.locator("#values-pager").inner_text()
    page.get_by_role("searchbox").fill("prune&comp perplexity@standin-learning-thin")
    page.locator("[data-values-select=key]").select_option(label="perplexity")
    page.locator("#values thead th").filter(has_text="value").get_by_role("button").click()
    shown = [float(t) for t in page.locator("#values tbody tr > :nth-child(7)").all_inner_texts()]
    assert shown == sorted(shown) and len(shown) > 1


def test_comparing_gives_the_paired_interval(opened):
    page = opened(KINDS["compare"])
    page.locator("#compare tbody tr").first.wait_for()
    first, second = {}, {}
    for record in TOY:
        for outcomes, recipe_hash in zip((first, second), MOST_OUTCOMES):
            if record["recipe_hash"] == recipe_hash and record["stderr"]:
                recipe = Recipe(**record["recipe"])
                outcomes[record["benchmark"]] = STORE.items(recipe, record["benchmark"])
    rows = {tuple(r.split("\t")[:2]): r.split("\t") for r in page.locator("#compare tbody tr").all_inner_texts()}
    checked = 0
    for name in first.keys() & second.keys():
        for key in first[name]:
            gap = second[name][key].astype(float) - first[name][key].astype(float)
            error = 1.959964 * gap.std(ddof=1) / np.sqrt(len(gap))
            middle, ends = gap.mean(), (gap.mean() - error, gap.mean() + error)
            if key == "nll":
                cells = rows[name, "perplexity"]
                expected = np.exp([middle, *ends])
            else:
                cells = rows[name, key]
                expected = (100 if is_share(name, key) else 1) * np.array([middle, *ends])
                assert cells[6].startswith("paired")
            shown = re.findall(r"-?\d+\.\d+", " ".join(cells[4:6]).replace("−", "-"))
            assert list(map(float, shown)) == pytest.approx(expected, abs=0.006)
            checked += 1
    assert checked > 3
    page.get_by_role("button", name="Swap").click()
    page.wait_for_url(f"**#a={MOST_OUTCOMES[1]}&b={MOST_OUTCOMES[0]}")


def test_the_theme_follows_the_system(opened):
    ground = "getComputedStyle(document.querySelector('table.grid tr.dense th')).backgroundColor"
    light, dark = (opened(KINDS["table"], scheme=scheme).evaluate(ground) for scheme in ("light", "dark"))
    assert light != dark


@pytest.mark.parametrize(
    "words, page",
    [
        ("retained accuracy chance", "docs/chance-level.html"),
        ("Table 10 MMLU", "targets/table10-laco.html"),
        ("channel_scales", "api/papers.linearpatch.html"),
    ],
)
def test_the_search_finds_pages_from_disk(opened, words, page):
    opened_page = opened("index.html")
    opened_page.locator("input.sidebar-search").fill(words)
    opened_page.keyboard.press("Enter")
    opened_page.wait_for_url("**/search.html*")
    results = opened_page.locator("#search-results li a")
    results.first.wait_for()
    links = results.evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert any(link.startswith(page) for link in links)


def test_pages_read_without_a_script(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site.as_uri()}/{KINDS['table']}")
    assert page.locator("#on-standin").is_visible() and page.locator("#on-paper").is_visible()
    context.close()
