"""Writes the site: every page from its template, and the files that pages offer or load."""

import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from common.console.progress import track
from common.records import results
from common.utils.errors import UserError
from common.utils.paths import ROOT
from reproductions import audit
from reproductions.audit.engine import KINDS, VERDICTS
from reproductions.audit.report import summary
from reproductions.documents import findings
from reproductions.render import show, tables, value_lists
from reproductions.render.evidence import Evidence
from reproductions.site import beside, claims, data, documents, recipes, table_grids, views
from reproductions.site.papers import ABOUT, bibtex, references
from reproductions.spec import registry, reported
from reproductions.spec.subjects import PAPER, PUBLISHED_MODELS, TOY

HERE = Path(__file__).parent
FORMS = {"csv": "CSV", "md": "Markdown", "latex": "LaTeX", "json": "JSON"}
ENDINGS = {"latex": "tex"}
MARK = ".layerlab-report"  # in a folder that may be written anew
OWN_FINDINGS = 3  # findings of this project on the first page


class Site:
    """The site of some evidence: pages as sources for `generator` in one folder, the files that they load in another."""

    def __init__(self, evidence: Evidence, source: Path, folder: Path) -> None:
        self.evidence, self.source, self.folder = evidence, source, folder
        self.rows = list(value_lists.rows(evidence))
        self.grids = {target: table_grids.grids(evidence, target) for target in registry.targets()}
        self.claims = {
            target: claims.of(target, built, not table_grids.target_of_shapes(evidence, target))
            for target, (_, _, built) in evidence.tables.items()
        }
        self.references = references()
        self.originals = recipes.originals(evidence)
        self.environment = _environment()
        self.environment.globals["site"] = self._facts()

    def _facts(self) -> dict:
        return {
            "records": sum(map(len, self.evidence.records.values())),
            "recipes": len(self.evidence.records),
            "numbers": sum(row["value"] is not None for row in self.rows),
            "printed": sum(len(reported.numbers(p, t)) for p in registry.PAPERS for t in reported.tables(p)),
            "findings": len(audit.findings()),
            "commit": (results.environment()["commit"] or "")[:9],
        }

    def write(self) -> None:
        """Write every page and file."""
        self._front(documents.copy(self.source))
        for paper in registry.PAPERS:
            self._paper(paper)
        for target in registry.targets():
            self._target(target)
        packed = {digest: data.items(self.evidence, digest) for digest in self.evidence.records}
        for digest in track(self.evidence.records, "pages of recipes", unit="page", each=True):
            self._recipe(digest, packed[digest])
        self._audit()
        self._records()
        self._page("compare.html", "compare.html")
        self._put("data/recipes.js", data.script("recipes", data.choices(self.evidence, packed)))
        for path in views.FIGURES.glob("*.svg"):
            self._put(f"figures/{path.name}", path.read_bytes())

    def _page(self, path: str, template: str, **content) -> None:
        """Write the source of a page: of HTML, or of Markdown where it has prose."""
        page = self.environment.get_template(template).render(root="../" * path.count("/"), **content)
        _write(self.source / path, page.encode())

    def _put(self, path: str, content: str | bytes) -> None:
        _write(self.folder / path, content if isinstance(content, bytes) else content.encode())

    def _front(self, navigation: dict[str, list[str]]) -> None:
        abstracts = []
        for paper in registry.PAPERS:
            about = ABOUT[paper]
            abstracts.append(
                {
                    "paper": paper,
                    "title": registry.TITLES[paper],
                    "idea": about["idea"],
                    "abstract": [self._sentence(line) for line in findings.ABSTRACTS[paper]],
                    "pictures": views.drawn(registry.get(about["figure"]))[:1],
                    "target": about["figure"],
                }
            )
        kinds = [*registry.PAPERS, *(registry.LEAGUE for _ in self._targets(registry.LEAGUE)[:1])]
        overviews = [{"title": registry.TITLES[kind], "lines": self._lines(kind)} for kind in kinds]
        league = views.drawn(registry.get(registry.LEAGUE))[:1]
        self._page(
            "index.md",
            "index.md",
            about=_about(),
            own=self._own_models(self.grids.values()),
            summary=self._summary(abstracts),
            findings=abstracts,
            overviews=overviews,
            extension_findings=_own_findings(),
            navigation=navigation,
            extension_claims=[self._sentence(line) for line in findings.OURS],
            league=league,
            tolerance=show.TOLERANCE,
        )

    def _own_models(self, grids: Iterable[Sequence[table_grids.Grid]]) -> dict[str, int]:
        """Return how many reported numbers that need weights were measured on the papers' own models, of how many."""
        measured, printed = zip(*map(table_grids.own_models, grids), strict=True)
        return {"measured": sum(measured), "reported": sum(printed)}

    def _summary(self, abstracts: Sequence[dict]) -> dict:
        """Return how many claims of each paper's abstract have which verdict, by the printed numbers and on each model."""
        names = [claims.PRINTED, *(findings.HEADS[name] for name in PUBLISHED_MODELS)]
        lines = []
        for abstract in abstracts:
            counts = claims.tally(abstract["abstract"])
            sides = [counts.get(name, {"open": len(abstract["abstract"])}) for name in names]
            chips = [[(k, sign, side.get(k, 0)) for k, sign in claims.SIGNS.items() if side.get(k)] for side in sides]
            lines.append({"paper": abstract["paper"], "title": abstract["title"], "sides": chips})
        return {"names": names, "lines": lines}

    def _sentence(self, finding: findings.SummaryLine) -> claims.ShownClaim:
        """Return a sentence of an abstract with its verdicts, each under the subject's heading."""
        built = {target: self.evidence.tables[target][2] for target in (finding.target, *finding.printed)}
        return claims.abstract(finding, built)

    def _targets(self, paper: str) -> list[str]:
        return [name for name, table in registry.targets().items() if table.paper == paper]

    def _lines(self, paper: str) -> list[dict]:
        """Return one line a target: how much is reported, compared and measured."""
        title = registry.TITLES[paper]
        lines = []
        for target in self._targets(paper):
            counts = {grid.subject.name: table_grids.tally(grid) for grid in self.grids[target]}
            printed = counts.get(PAPER.name, {})
            line = {"target": target, "title": registry.get(target).title.removeprefix(f"{title}, ")}
            line["measured"] = {
                label: counts.get(name, {}).get("measured", 0) for name, label in self._measured_names().items()
            }
            line |= {key: printed.get(key, 0) for key in ("reported", "match", "differs")}
            lines.append(line)
        return lines

    def _measured_names(self) -> dict[str, str]:
        """Return the subjects with rows -> their names in columns."""
        names = dict.fromkeys(g.subject.name for grids in self.grids.values() for g in grids if not g.compared)
        return {name: "toy model" if name == TOY.model else name for name in names}

    def _paper(self, paper: str) -> None:
        about, folder = ABOUT[paper], ROOT / "papers" / paper
        module, _, function = about["code"].rpartition(".")
        own_claims = [claim for name in self._targets(paper) for claim in self.claims[name]]
        # every claim has a verdict per subject: those without rows in its table are open
        names = dict.fromkeys(v.subject for claim in own_claims for v in claim.measured)
        last = (claims.PAPERS_OWN, claims.SHAPES)
        names = sorted(names, key=lambda name: (name in last, name == TOY.label))  # real models first
        facts = {
            "name": paper,
            "title": registry.PAPERS[paper],
            "about": about,
            "reference": self.references[paper],
            "bibtex": bibtex(paper, self.references[paper]),
            "own": self._own_models([self.grids[target] for target in self._targets(paper)]),
            "code": f"../../_modules/{module.replace('.', '/')}.html#{function}",
            "pictures": views.drawn(registry.get(about["figure"]))[:1],
            "below": [
                path.relative_to(folder).with_suffix("") for path in (*folder.glob("*.ipynb"), *folder.glob("*/*.md"))
            ],
            "audit": registry.PAPERS[paper],
            "findings": sum(f.paper == paper for f in audit.findings()),
            "claims": [claims.titled(claims.aligned(claim, names)) for claim in own_claims],
            "lines": self._lines(paper),
            "readme": (folder / "README.md").read_text(encoding="utf-8").partition("\n")[2],
        }
        self._page(f"papers/{paper}/README.md", "paper.md", paper=facts)

    def _target(self, target: str) -> None:
        table, subjects, built = self.evidence.tables[target]
        for form in FORMS:
            self._put(f"targets/{target}.{ENDINGS.get(form, form)}", tables.render(built, form))
        cited = {
            name for grid in self.grids[target] for line in grid.lines for cell in line.cells for name in cell.audit
        }
        models = [subject.name for subject in subjects if not subject.printed and not subject.toy]
        is_extension = table.paper not in registry.PAPERS
        grids = [views.ranked(grid) if is_extension else grid for grid in self.grids[target]]
        facts = {
            "title": table.title,
            "page": f"papers/{table.paper}/README.html" if table.paper in registry.PAPERS else "index.html",
            "paper_title": registry.TITLES[table.paper],
            "note": table.note,
            "claims": self.claims[target],
            "first": views.fullest(grids),
            "grids": [views.with_counts(grid) for grid in grids],
            "lacking": any(
                c.word == table_grids.SIGNS["not-run"] for g in grids for line in g.lines for c in line.cells
            ),
            "own": self._own_models([grids]),
            "beside": beside.metrics(grids),
            "tolerance": show.TOLERANCE,
            "gate": show.GATE,
            "gated": any("gate" in row for row in built["rows"]),
            "pictures": views.drawn(table),
            "findings": [f for f in audit.findings() if f.name in cited],
            "commands": [f"make {target}", *(f"make {target} MODEL={model}" for model in models)],
            "downloads": [(title, f"targets/{target}.{ENDINGS.get(form, form)}") for form, title in FORMS.items()],
        }
        self._page(f"targets/{target}.html", "target.html", target=facts, filters=is_extension)

    def _recipe(self, digest: str, packed: dict) -> None:
        self._page(f"recipes/{digest}.html", "recipe.html", recipe=recipes.view(self.evidence, digest, self.originals))
        self._put(f"recipes/{digest}.json", recipes.as_json(self.evidence, digest))
        self._put(f"data/recipes/{digest}.js", data.script(digest, data.of_recipe(self.evidence, digest, packed)))

    def _audit(self) -> None:
        listed = [asdict(finding) | {"target": views.target_of(finding)} for finding in audit.findings()]
        present = {f["kind"] for f in listed}
        selects = [
            ("paper", list(registry.PAPERS.values())),
            ("kind", [title for kind, title in KINDS.items() if kind in present]),
            ("verdict", list(VERDICTS)),
        ]
        self._page(
            "audit.html", "audit.html", findings=listed, selects=selects, kinds=KINDS, titles=registry.PAPERS,
            headlines=[f for f in listed if f["headline"]], summary=summary(audit.findings()),
        )  # fmt: skip

    def _records(self) -> None:
        value_lists.write_csv(self.rows, self.folder / "results.csv")
        self._put("data/values.js", data.script("values", data.all_values(self.rows)))
        self._page("records.html", "records.html", fields=value_lists.FIELDS)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _about() -> str:
    """Return README's words on the whole, between its title and the next heading, without what is generated."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"<!-- (\S+) -->.*?<!-- end \1 -->", "", text.partition("\n## ")[0].partition("\n")[2], flags=re.S)


def _own_findings() -> str:
    """Return the first findings of docs/findings.md, as many as the first page has."""
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8").partition("## Findings of this project\n")[2]
    items = re.findall(r"^- .*(?:\n  .*)*", text, re.M)[:OWN_FINDINGS]
    return re.sub(r"\]\((?!\w+:)", "](docs/", "\n".join(items))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["slug"] = lambda text: re.sub(r"[^\w.-]+", "-", text)
    environment.filters["breakable"] = lambda name: Markup(re.sub(r"(?<=[_@-])", "<wbr>", str(escape(name))))  # noqa: S704
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    return environment


def build(evidence: Evidence, folder: Path) -> None:
    """Write the site into a folder, replacing an earlier build.

    Raises:
        UserError: the folder holds other files, or cannot be written.
    """
    try:
        from reproductions.site import generator
    except ImportError as error:
        raise UserError(f"{error.name} is not installed. The site needs it. Install it with `make setup`.") from error
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder; name an empty or a new one with --out")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise UserError(f"{folder} holds files that are no report; name an empty or a new folder with --out")
    fresh = folder.with_name(f"{folder.name}.new")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        source, site = fresh / "source", fresh / "site"  # MyST-NB writes beside the second
        site.mkdir(parents=True)
        (site / MARK).touch()
        Site(evidence, source, site).write()
        generator.build(source, site)
        shutil.rmtree(folder, ignore_errors=True)
        site.rename(folder)
        shutil.rmtree(fresh)
    except OSError as error:
        raise UserError(
            f"cannot write the report to {folder}: {error.strerror}; free space or name another with --out"
        ) from error
