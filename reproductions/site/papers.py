"""Describe each paper on the site: who wrote it, its idea, one equation, and one figure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from common.utils.paths import ROOT


@dataclass(frozen=True)
class About:
    """One paper. equation: in TeX. where: what the equation's letters mean. code: name of the function that computes it.

    headline: target and column of the picture on the front page. arxiv: its number there. repository: the authors' own code.
    published: where and when, if not on arXiv alone.
    """

    idea: str
    equation: str
    where: str
    code: str
    headline: tuple[str, str]
    arxiv: str
    repository: str
    figure: str = ""
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
        """The entry for a bibliography."""
        family, year = re.sub(r"\W", "", self.authors[0][1]).lower(), self.year
        authors = " and ".join(f"{family}, {given}" for given, family in self.authors)
        title = self.title.replace("&", r"\&")
        fields = {"title": f"{{{title}}}", "author": authors, "year": str(year)}
        fields |= {"journal": f"arXiv preprint arXiv:{self.arxiv}", "eprint": self.arxiv, "archivePrefix": "arXiv"}
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@article{{{family}{year}{self.name},\n{lines}\n}}"


def citations(papers: Sequence[str]) -> dict[str, Citation]:
    """Return how to cite each paper, from the references of CITATION.cff."""
    references = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    by_number = {one["value"]: reference for reference in references for one in reference["identifiers"]}
    found = {}
    for paper in papers:
        number = ABOUT[paper].arxiv
        reference = by_number[f"arXiv:{number}"]
        authors = tuple((one["given-names"], one["family-names"]) for one in reference["authors"])
        found[paper] = Citation(paper, reference["title"], authors, reference["year"], number)
    return found


ABOUT = {
    "linearpatch": About(
        "Remove a block of layers and multiply the residual stream at the pruning interface by one symmetric matrix: ratios "
        "of mean magnitudes, measured in a Hadamard basis. No training; it may be distilled.",
        r"X^{(l)} \leftarrow X^{(l)} \cdot H \cdot \mathrm{diag}(d) \cdot H^\top, \quad "
        r"d_k = \frac{\mathbb{E}\left|(X^{(l+n)} H)_k\right|}{\mathbb{E}\left|(X^{(l)} H)_k\right|}",
        "Eqs. 4 to 8: X is the residual stream at the pruning interface, H a Walsh-Hadamard matrix, E the mean over "
        "calibration tokens.",
        "papers.linearpatch.patch.channel_scales",
        ("table1-linearpatch", "RP"),
        "2505.24680",
        "https://github.com/chenxinrui-tsinghua/LinearPatch",
        "figure1c-linearpatch",
        "NeurIPS 2025",
    ),
    "prunecomp": About(
        "Every layer adds to the magnitude of the residual stream. Remove layers one by one, and multiply the stream at each "
        "pruning interface by one factor, which is fused into the weights before it.",
        r"\alpha = \mathrm{mean}\left(\frac{\lVert X^{(l+1)} \rVert_1}{\lVert X^{(l)} \rVert_1}\right), \quad "
        r"X^{(l)} \leftarrow \alpha X^{(l)}",
        "Eqs. 9 and 10: the mean over channels and calibration sequences of the ratio of L1 norms after and before layer l.",
        "papers.prunecomp.factor.magnitude_factor",
        ("table1-prunecomp", "AVG"),
        "2507.18212",
        "https://github.com/chenxinrui-tsinghua/PruneAndComp",
        "figure1-prunecomp",
    ),
    "laco": About(
        "Merge m later layers into an earlier one by adding their differences to it, as long as the outputs stay alike.",
        r"\theta_l^* = \theta_l + \sum_{k=1}^{m} (\theta_{l+k} - \theta_l)",
        "Eq. 1: θ are the weights of a layer. A merge stays if the mean cosine of the outputs is above T.",
        "papers.laco.merge.merge_layers",
        ("table2-laco", "Avg."),
        "2402.11187",
        "https://github.com/yangyifei729/LaCo",
        "figure-search-laco",
    ),
    "reassessing": About(
        "Seven metrics compared: removing the last layers is as good as any. Then fine-tune only the head and the last "
        "layers that remain.",
        r"f'(x) = \mathrm{head} \circ L_{N-n} \circ \cdots \circ L_1 (E x)",
        "Reverse order: of N layers the last n are removed. The head and the last three layers that stay are trained.",
        "papers.reassessing.recipe.reverse_order",
        ("table1-reassessing", "Avg."),
        "2411.15558",
        "https://github.com/yaolu-zjut/Navigation_LLM_layer_pruning",
        "figureA-reassessing",
    ),
}
