"""The site: every link resolves, every page is there, and its numbers are those of the records' files."""

import base64
import csv
import json
import math
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import lxml.html
import numpy as np
import pytest
from bs4 import BeautifulSoup
from site_links import followed
from stored_records import put

from common.pruning.recipe import SHAPE_ONLY
from common.records.published import Published
from common.records.results import NOWHERE, PUBLISHED, Recipe, Record, Store
from common.utils.errors import UserError
from common.utils.paths import ROOT
from reproductions import audit
from reproductions.documents import findings
from reproductions.render import show, tables
from reproductions.site import data, generator, pages, recipes, table_grids, views
from reproductions.site.__main__ import main
from reproductions.spec import registry, reported
from reproductions.spec.subjects import PUBLISHED_MODELS, TOY


@cache
def published() -> dict[str, dict]:
    return {f"{record['recipe_hash']}/{record['benchmark']}": record for record in Published(PUBLISHED)}


@cache
def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "lxml")


@cache
def tree(path: Path):
    """A large page, in a tenth of the time that `parsed` takes."""
    return lxml.html.document_fromstring(path.read_bytes(), parser=lxml.html.HTMLParser(encoding="utf-8"))


def test_every_link_within_the_site_resolves(site):
    checked, dead = followed(site, markdown=True)  # before Sphinx makes pages of them
    assert dead == [] and checked > 5000


def test_the_first_page_judges_as_the_list_of_findings_does(site):
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    text = text.partition("<!-- findings -->")[2].partition("<!-- end findings -->")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    verdicts, heads = {}, []  # sentence -> {model: verdict}
    for line in lines:
        if line[0] == "No.":
            heads = line
        elif line[0].isdigit():
            verdicts[line[1]] = {head: cell for head, cell in zip(heads, line, strict=True) if head.startswith("On ")}
    assert len(verdicts) == sum(line[0].isdigit() for line in lines)
    rows = [row for row in parsed(site / "index.md").select("section.card tr") if row.th]
    page, compared = {row.th.get_text(" ", strip=True): row for row in rows}, 0
    for sentence in verdicts.keys() & page.keys():
        for head, cell in verdicts[sentence].items():
            shown = page[sentence].select_one(f'td[data-label="o{head[1:]}"]').get_text(" ", strip=True)
            verdict, _, effect = cell.partition(": ")
            effect = in_words(effect)
            if effect:
                assert re.split(r" \(|;", verdict)[0] in shown and effect in shown, (sentence, cell, shown)
                compared += 1
    assert compared >= 20 and {finding.sentence for finding in findings.OURS} <= page.keys()


def in_words(effect):
    """What the page says of "−2.8 points [−5.9, +0.1]"."""
    words = {"−%": "lower", "+%": "higher", "−points": "less", "+points": "more"}
    effect = re.sub(r" \[(\S+), (\S+)\]", r", 95 % CI \1 to \2", effect)
    return re.sub(r"^([−+])([\d.]+) (%|points)", lambda m: f"{m[2]} {m[3]} {words[m[1] + m[3]]}", effect)


def test_there_is_a_page_for_every_target_recipe_and_paper(site, evidence):
    assert {p.stem for p in (site / "targets").glob("*.html")} == registry.targets().keys()
    assert {p.parent.name for p in (site / "papers").glob("*/README.md")} == set(registry.PAPERS)
    on_disk = {name.partition("/")[0] for name in published()}
    assert {p.stem for p in (site / "recipes").glob("*.html")} == on_disk


@cache
def spelled(record: str, digits: int | None) -> set[str]:
    """A record's values as they may be written with so many digits behind the point; None: with an exponent."""
    scales = (1, 100, 1e-6, 1e-9, 1e3, 1e15, 1 / 2**30, 1 / 2**20)
    values = [float(value) for value in published()[record]["values"].values() if math.isfinite(value)]
    form = ".2e" if digits is None else f".{digits}f"
    return {f"{value * scale:{form}}" for value in values for scale in scales}


def test_every_number_that_leads_to_a_recipe_is_in_its_record(site):
    checked = 0
    for page in (site / "targets").glob("*.html"):
        for link in tree(page).xpath("//a[contains(@class, 'quiet')][ancestor::td]"):
            digest, benchmark = re.fullmatch(r"\.\./recipes/(\w+)\.html#(.+)", link.get("href")).groups()
            text = link.text_content().replace(",", "")
            digits = len(text.partition(".")[2]) if "e" not in text else None
            assert text in spelled(f"{digest}/{benchmark}", digits), (page.name, link.get("href"), text)
            checked += 1
    assert checked > 2000


def test_a_row_of_table_1_from_its_files_alone(site):
    """Retained performance of SLEB on the toy model: the mean over nine tasks of the ratio to the dense model's score."""
    panel = parsed(site / "targets" / "table1-linearpatch.html").select_one("#on-standin")
    labels = [re.sub(r"[↑↓].*", "", th.get_text()).strip() for th in panel.select("thead th")]
    rows = {}
    for row in panel.select("tbody tr"):
        texts = [cell.get_text() for cell in row.find_all(["th", "td"])]
        rows[row.th.get_text().strip(), texts[1].strip()] = dict(zip(labels, texts, strict=True)) | {"cells": row}
    sleb, dense = rows["SLEB", "5/16"], rows["Dense", "0/16"]
    tasks = labels[labels.index("Continue") : labels.index("Form") + 1]
    assert len(tasks) == 9
    ratios = [float(sleb[task]) / float(dense[task]) for task in tasks]
    assert float(sleb["RP"].split("±")[0]) == pytest.approx(100 * np.mean(ratios), abs=0.02)
    assert parsed(site / "targets" / "table1-linearpatch.html").find(string=re.compile("higher is better"))


def test_the_sign_of_no_result_is_explained_where_a_table_has_it(site):
    explained = []
    for path in (site / "targets").glob("*.html"):
        page = tree(path)
        signs = [cell for cell in page.xpath("//section[@data-tab]//td") if "".join(cell.itertext()).strip() == "·"]
        explained.append("·: not run" in page.text_content())
        assert explained[-1] == bool(signs), path.name
    assert len(set(explained)) == 2


def test_downloads_are_the_tables_of_the_command_line(site, evidence):
    for target in ("table1-linearpatch", "table6-reassessing"):
        built = show.build(registry.get(target), evidence.store, evidence.subjects[target])
        for form, ending in {"csv": "csv", "md": "md", "latex": "tex", "json": "json"}.items():
            assert (site / "targets" / f"{target}.{ending}").read_text() == tables.render(built, form)


def test_audit_marks_lead_to_findings_and_every_finding_is_there(site):
    page = parsed(site / "audit.html")
    assert {article["id"] for article in page.select("article.finding")} == {f.name for f in audit.findings()}
    first = audit.findings()[0]
    article = page.find(id=first.name).get_text()
    assert first.printed in article and first.recomputed in article
    marked = parsed(site / "targets" / "table1-linearpatch.html").select("a.mark")
    assert {link["href"] for link in marked} >= {"../audit.html#LP-18"}


def test_first_page_and_all_records_are_small(site):
    own = sum(path.stat().st_size for path in (pages.HERE / "static").iterdir())
    assert own + (site / "index.md").stat().st_size < 300_000
    everything = own + sum((site / name).stat().st_size for name in ("records.html", "data/values.js"))
    assert everything < 1_200_000


def test_values_as_csv_are_those_of_the_files(site):
    with (site / "results.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    from_files = Counter()
    for name, record in published().items():
        for key, value in record["values"].items() or [("", None)]:
            number = None if value is None else float(value)
            from_files[name, key, "" if number is None else repr(number)] += 1
    assert Counter((f"{row['recipe']}/{row['benchmark']}", row["key"], row["value"]) for row in rows) == from_files


def handed_over(path: Path):
    """What a data script gives to the page's script."""
    match = re.fullmatch(r'layerlab\.data\("([^"]+)",(.*)\);\n', path.read_text(encoding="utf-8"), re.S)
    return match[1], json.loads(match[2])


def test_outcomes_per_item_survive_packing(site):
    store, compared, read = Store(NOWHERE), 0, cache(handed_over)
    for record in published().values():
        recipe = Recipe(**record["recipe"])
        for key, values in store.items(recipe, record["benchmark"]).items():
            name, content = read(site / "data" / "recipes" / f"{recipe.hash}.js")
            assert name == recipe.hash
            packed = content["items"][record["benchmark"]][key]
            compared += 1
            raw = base64.b64decode(packed.get("f32") or packed["bits"])
            if values.dtype == bool:
                bits = "".join(f"{byte:08b}" for byte in raw)[: packed["n"]]
                assert [bit == "1" for bit in bits] == values.tolist()
            else:
                assert np.frombuffer(raw, "<f4").tolist() == values.astype("<f4").tolist()
    assert compared > 1000


@pytest.mark.parametrize(
    ("right", "losses", "handed_over"),
    [
        ([False, False, True, False], [1.0, 2.0], {"nll"}),
        ([True, True, False, True], [2.0, 3.0], {"acc"}),
        ([True, True, False, True], [1.0, 2.0], {"acc", "nll"}),
    ],
)
def test_outcomes_of_another_measurement_than_the_records_are_not_handed_over(tmp_path, right, losses, handed_over):
    """As they lie where an earlier version was killed between the two: they name no record that they belong to."""
    recipe, store = Recipe("standin", "standin"), Store(tmp_path, None)
    record = put(store, recipe, "b", {"acc": 0.75, "nll": 1.5, "perplexity": math.exp(1.5)})
    np.savez(store.path(recipe, "b").with_suffix(".npz"), acc=np.array(right), nll=np.array(losses))
    evidence = SimpleNamespace(store=store, records={recipe.hash: {"b": record}}, recipe=lambda digest: recipe)
    assert data.items(evidence, recipe.hash)["b"].keys() == handed_over


def test_all_values_page_reads_back(site):
    _, content = handed_over(site / "data" / "values.js")
    words, rows = content["strings"], content["rows"]
    at = content["columns"].index("value")
    assert len(rows) == sum(max(1, len(published_record["values"])) for published_record in published().values())
    for row in rows[:: len(rows) // 50]:
        name = f"{words['recipe'][row[0]]}/{words['benchmark'][row[4]]}"
        record, key = published()[name], words["key"][row[5]]
        if not key:  # a result of details alone
            assert record["values"] == {} and row[at] == record["status"]
            continue
        assert row[at] == pytest.approx(record["values"][key], rel=1e-5)


def test_a_recipe_page_says_what_was_removed_and_how_to_repeat_it(site):
    for page in list((site / "recipes").glob("*.html"))[::10]:
        record = json.loads(page.with_suffix(".json").read_text())["records"][0]
        removed, text = record["details"].get("removed"), parsed(page).get_text()
        if removed:
            assert ", ".join(map(str, removed)) in text
            assert len(parsed(page).select("svg.strip rect.gone")) == len(set(removed))
        assert record["provenance"]["commit"] in text and record["provenance"]["packages"]["torch"] in text
        assert re.search(r"make \S+.*FORCE=1|No table shows this recipe", text)


def test_headings_and_pictures_are_described(site):
    """Every table heading has a scope; every picture has a text of its own, every drawing a title; a page has one title."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert all(re.search(r'\balt="[^"]', tag) for tag in re.findall(r"<img[^>]*>", text)), page
        assert all("<title>" in svg for svg in re.findall(r"<svg.*?</svg>", text, re.S)), page
        assert len(re.findall(r"<h1[ >]", text)) == 1, page
        assert all(re.search(r'\sscope="(col|row|colgroup)"', tag) for tag in re.findall(r"<th\b[^>]*>", text)), page
        assert not re.search(r'<svg[^>]*\bclass="[^"]*\beffect\b', text), page
        for figure in parsed(page).select("figure:has(img):has(figcaption)") if "<img" in text else ():
            assert figure.img["alt"] != figure.figcaption.get_text(strip=True), page
    books = [json.loads(book.read_text())["cells"] for book in (site / "papers").glob("*/*.ipynb")]
    drawn = [cell for book in books for cell in book if "image/png" in str(cell.get("outputs"))]
    words = [cell["metadata"]["mystnb"]["image"]["alt"] for cell in drawn]
    assert words and not any(re.match(r"Output |Eq$", text) for text in words)


def test_digits_line_up_at_the_point():
    shown = [table_grids.number(value, digits, 2) for value, digits in ((12.25, 2), (7.5, 1), (100, 0))]
    assert [number.text for number in shown] == ["12.25", "7.5", "100"]
    for number in shown:  # digits behind the point, and the room that is left for those that lack
        behind = len(number.text.partition(".")[2]) + number.pad
        assert behind == 2 and number.point == ("." not in number.text)


def test_strip_marks_what_is_removed():
    svg = BeautifulSoup(recipes.strip(6, [4, 1], interfaces=[2]), "lxml")
    assert [("gone" in rect["class"]) for rect in svg.select("rect")] == [False, True, False, False, True, False]
    assert svg.title.get_text() == "2 of 6 layers removed: 1, 4" and len(svg.select("path.cut")) == 1


def test_a_folder_with_other_files_is_refused_and_a_report_is_replaced(evidence, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="no report"):
        pages.build(evidence, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"
    monkeypatch.setattr(pages.Site, "__init__", lambda self, evidence, source, folder: source.mkdir())
    monkeypatch.setattr(pages.Site, "write", lambda self: None)

    def build(source, folder):
        for path in (folder / "index.html", folder.parent / "left"):
            path.write_text("new")

    monkeypatch.setattr(generator, "build", build)
    for _ in range(2):
        pages.build(evidence, tmp_path / "report")
    assert (tmp_path / "report" / "index.html").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "report"}


def test_what_is_being_done_is_said_and_what_libraries_log_is_not(tmp_path):
    """Of another process: a test's own handlers change what a log prints."""
    code = f"""
import logging
from reproductions.render import evidence as records
from reproductions.site import pages
from reproductions.site.__main__ import main

def build(evidence, folder):
    logging.getLogger("lm_eval.api.task").warning("a library's line")
    logging.getLogger("common.records").warning("a line of ours")

records.gathered, pages.build = lambda own: None, build
main(["--out", {str(tmp_path / "out")!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["reading the results", "warning: a line of ours"]


def test_bad_options_are_one_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("reproductions.render.evidence.gathered", lambda own: None)
    assert main(["--out", str(tmp_path / "file")]) == 2
    with pytest.raises(SystemExit) as stopped:
        main(["--prot", "1"])
    assert stopped.value.code == 2
    beginnings = {line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()}
    assert beginnings == {"reading the results", "error"}


def test_the_first_page_opens_with_the_readmes_words(site):
    """What stands before README's first table; its summary counts every claim of the papers."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = parsed(site / "index.md")
    shown = " ".join(page.get_text().replace("``````{raw} html", "").split())
    before = shown.partition("## What reproduced")[0]
    for paragraph in readme.partition("<!-- papers -->")[0].strip().split("\n\n")[1:]:
        assert " ".join(paragraph.split()) in before, paragraph
    assert shown.partition("# Layer pruning, reproduced")[2].lstrip().startswith("0 of ")
    chips = [[int(chip.get_text().split()[0]) for chip in cell.select(".chip")] for cell in page.select(".summary td")]
    papers, sides = len(page.select(".summary tbody tr")), len(page.select(".summary thead th")) - 1
    counted = np.array([sum(counts) for counts in chips]).reshape(papers, sides)
    assert counted.sum(axis=0).tolist() == [sum(map(len, findings.ABSTRACTS.values()))] * sides


def test_what_follows_from_shapes_alone_is_not_called_measured_on_the_papers_models(site):
    """No published record has weights of a model of the papers'."""
    recipes = [record["recipe"] for record in published().values()]
    real = {recipe["model"] for recipe in recipes} - {"standin", *PUBLISHED_MODELS}
    weights = {recipe["weights"] for recipe in recipes if recipe["model"] in real}
    assert real and weights == {SHAPE_ONLY}
    for page in (site / "targets").glob("*.html"):
        last = tree(page).xpath("//section[@data-tab]")[-1]
        if last.get("data-tab") == "the paper’s models":
            facts = last.xpath(".//p[contains(@class, 'facts')]")[0].text_content()
            assert not re.search(r"\d measured|what was measured", facts), page.name
    judging = [page for page in site.rglob("*.html") if 'class="claims' in page.read_text(encoding="utf-8")]
    headings = {th.get_text() for page in judging for th in parsed(page).select("table.claims thead th")}
    assert "on the paper’s models" not in headings and "on the paper’s models’ shapes" in headings


def test_every_paper_has_its_facts_and_the_entry_of_citation_cff(site):
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for paper in registry.PAPERS:
        page = parsed(site / "papers" / paper / "README.md")
        link = page.select_one('a[href^="https://arxiv.org/abs/"]')
        number = link["href"].rpartition("/")[2]
        reference = next(part for part in text.split("- type: article") if f"arXiv:{number}" in part)
        families = re.findall(r"family-names: ([^}]+)\}", reference)
        entry = next(code.get_text() for code in page.select(".command code") if code.get_text().startswith("@"))
        assert re.findall(r"[{ ](\w+), ", re.search(r"author = (.*)", entry)[1]) == families
        assert re.search(r"year = \{(\d+)\}", entry)[1] == re.search(r"year: (\d+)", reference)[1]
        title = re.search(r'title: "?(.*?)"?\n', reference)[1]
        assert title in page.get_text() and title.replace("&", r"\&") in entry
        assert entry.count("{") == entry.count("}")


def test_claims_that_read_alike_name_their_tables(site):
    for paper in registry.PAPERS:
        heads = parsed(site / "papers" / paper / "README.md").select("table.claims th.claim")
        names = [head.get_text(" ", strip=True) for head in heads]
        assert len(set(names)) == len(names) > 3


def test_reported_and_measured_stand_in_one_row(site):
    """Retained performance in Table 1 of LinearPatch: the printed numbers, and those of the tables of each model."""
    page = parsed(site / "targets" / "table1-linearpatch.html")
    table = next(s for s in page.select("section[data-choice]") if s["data-choice"].startswith("RP")).table
    heads = [th.get_text(" ", strip=True) for th in table.select("thead tr:last-child th")][1:]
    spans = [int(th["colspan"]) for th in table.select("thead tr:first-child th")]
    assert sum(spans) == len(heads) and len(spans) >= 3  # printed, pretrained models', the toy model's
    printed = reported.cells("linearpatch", "1")
    compared = 0
    for row in table.select("tbody tr:not(.dense)"):
        method, cells_ = row.th.get_text(strip=True), row.find_all("td")
        for head, cell in list(zip(heads, cells_, strict=True))[: spans[0]]:
            model, sparsity = head.rsplit(" ", 1)
            assert float(re.search(r"[\d.]+", cell.get_text())[0]) == printed[model, sparsity, method, "RP"].value
            compared += 1
        panel = page.select_one("#on-standin tbody")
        own = [tr for tr in panel.select("tr") if tr.th.get_text(strip=True) == method]
        values = {tr.td.get_text(strip=True): {td.get("data-v") for td in tr.select("td")} for tr in own}
        for head, cell in list(zip(heads, cells_, strict=True))[-spans[-1] :]:
            assert cell["data-v"] in values[head]
            compared += 1
    assert compared >= 6 * (spans[0] + spans[-1])


def test_a_league_ranks_by_hand():
    def line(method, sparsity, *values, dense=False):
        shown = [
            table_grids.Cell(sort="")
            if value is None
            else table_grids.Cell(reproduced=table_grids.number(value, 1, 1), sort=value)
            for value in values
        ]
        return table_grids.Line("m", sparsity, method, dense, "", "", tuple(shown))

    headings = (
        table_grids.Heading("seconds", "seconds"),
        table_grids.Heading("PPL AVG", "PPL AVG", table_grids.DOWN),
        table_grids.Heading("AVG", "AVG", table_grids.UP),
    )
    lines = (
        line("Dense", "0/9", None, 1.0, 9.0, dense=True),
        line("a", "2/9", 1.0, 5.0, 3.0),
        line("b", "2/9", 2.0, 4.0, 2.0),
        line("c", "2/9", None, None, None),
        line("d", "3/9", None, 2.0, None),
        line("e", "3/9", 4.0, 7.0, 1.0),
    )
    grid = views.ranked(table_grids.Grid(TOY, "t", "published", False, headings, lines))
    assert [grid_line.method for grid_line in grid.lines] == ["Dense", "b", "a", "c", "d", "e"]
    assert {grid_line.method for grid_line in grid.lines if grid_line.full} == {"Dense", "a", "b", "e"}
    best = {(grid_line.method, at) for grid_line in grid.lines for at, cell in enumerate(grid_line.cells) if cell.best}
    assert best == {("b", 1), ("a", 2), ("d", 1), ("e", 2)}
    assert views.fullest_size(grid) == "2/9"


def test_a_long_reason_does_not_push_the_value_out_of_view(site):
    """The reason wraps, as no cell of a table does by itself."""
    style = (pages.HERE / "static" / "style.css").read_text(encoding="utf-8")
    assert re.search(r"\.reason \{[^}]*white-space: normal", style)
    recipe = Recipe("standin", "standin")
    record = Record(vars(recipe), recipe.hash, "b", "no data", reason="could not fetch " + "x" * 200)
    facts = {"recipe": recipe, "removed": (None, None), "method": "Dense", "share": ""}
    answers = {name: lambda digest, fact=fact: fact for name, fact in facts.items()}
    evidence = SimpleNamespace(records={recipe.hash: {"b": record}}, shown={}, **answers)
    view = recipes.view(evidence, recipe.hash, {})
    site_ = {"records": 1, "recipes": 1, "commit": ""}
    html = pages._environment().get_template("recipe.html").render(root="../", recipe=view, site=site_)
    assert BeautifulSoup(html, "lxml").select_one("td .reason").get_text() == f"no data: {record.reason}"


def test_the_script_knows_the_same_directions_as_the_pages():
    script = (Path(recipes.__file__).parent / "static" / "report.js").read_text(encoding="utf-8")
    for name in ("SHARES", "LOWER"):
        (listed,) = re.findall(rf"const {name} = (\[.*?\]);", script)
        assert tuple(json.loads(listed)) == getattr(recipes, name)


def test_a_recipes_page_says_which_direction_is_better():
    values = {"kl": 0.5, "same_top": 0.75, "factor": 1.0}
    shown = recipes._cells(Record({}, "0", "kl@text", "ok", values))
    assert [(cell["key"], cell["better"]) for cell in shown] == [("kl", "↓"), ("same_top, %", "↑"), ("factor", "")]
