"""What the site says of each paper (papers.yaml), and how one cites it (CITATION.cff)."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from common.utils.paths import ROOT

ABOUT: dict[str, dict] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def references() -> dict[str, dict]:
    """Return each paper's entry in the references of CITATION.cff."""
    entries = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    by_number = {identifier["value"]: entry for entry in entries for identifier in entry["identifiers"]}
    return {paper: by_number[f"arXiv:{about['arxiv']}"] for paper, about in ABOUT.items()}


def bibtex(paper: str, reference: Mapping) -> str:
    """Return a paper's entry for a bibliography, from the one in CITATION.cff."""
    number, year, people = ABOUT[paper]["arxiv"], reference["year"], reference["authors"]
    family = re.sub(r"\W", "", people[0]["family-names"]).lower()
    authors = " and ".join(f"{person['family-names']}, {person['given-names']}" for person in people)
    title = reference["title"].replace("&", r"\&")
    fields = {"title": f"{{{title}}}", "author": authors, "year": str(year)}
    fields |= {"journal": f"arXiv preprint arXiv:{number}", "eprint": number, "archivePrefix": "arXiv"}
    lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"@article{{{family}{year}{paper},\n{lines}\n}}"
