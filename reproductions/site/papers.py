"""Describe each paper on the site: who wrote it, its idea, one equation, and one figure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from common.utils.paths import ROOT


@dataclass(frozen=True)
class About:
    """One paper.

    equation: in TeX. where: meaning of the equation's letters. code: name of the function that computes it. arxiv:
    its number there. repository: the authors' code. figure: target whose picture pages show. published: where and when,
    if not on arXiv alone.
    """

    idea: str
    equation: str
    where: str
    code: str
    arxiv: str
    repository: str
    figure: str
    published: str = ""


@dataclass(frozen=True)
class Citation:
    """A paper as one cites it. authors: given and family name of each."""

    name: str
    title: str
    authors: tuple[tuple[str, str], ...]
    year: int
    arxiv: str

    @property
    def bibtex(self) -> str:
        """Return the entry for a bibliography."""
        family, year = re.sub(r"\W", "", self.authors[0][1]).lower(), self.year
        authors = " and ".join(f"{family}, {given}" for given, family in self.authors)
        title = self.title.replace("&", r"\&")
        fields = {"title": f"{{{title}}}", "author": authors, "year": str(year)}
        fields |= {"journal": f"arXiv preprint arXiv:{self.arxiv}", "eprint": self.arxiv, "archivePrefix": "arXiv"}
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@article{{{family}{year}{self.name},\n{lines}\n}}"


def _about() -> dict[str, About]:
    """Return each paper's description in papers.yaml."""
    described = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {paper: About(**about) for paper, about in described.items()}


ABOUT = _about()


def citations(papers: Sequence[str]) -> dict[str, Citation]:
    """Return the citation of each paper, from the references of CITATION.cff."""
    references = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    by_number = {entry["value"]: reference for reference in references for entry in reference["identifiers"]}
    by_paper = {}
    for paper in papers:
        number = ABOUT[paper].arxiv
        reference = by_number[f"arXiv:{number}"]
        authors = tuple((entry["given-names"], entry["family-names"]) for entry in reference["authors"])
        by_paper[paper] = Citation(paper, reference["title"], authors, reference["year"], number)
    return by_paper
