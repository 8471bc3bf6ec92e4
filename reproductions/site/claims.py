"""The papers' claims as pages show them. The one place that knows the form in which tables give their verdicts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from reproductions.claims import verdicts as judge
from reproductions.documents import findings
from reproductions.documents.findings import SummaryLine
from reproductions.render import claim_verdicts
from reproductions.render.claim_verdicts import NO_NUMBER, ShownVerdict
from reproductions.spec import registry
from reproductions.spec import subjects as settings

PRINTED = "printed numbers"
PAPERS_OWN = "the paper’s models"
SHAPES = "the paper’s models’ shapes"  # where nothing was measured on them, only what follows from these
SHORT = {name: settings.HEADS[name] for name in settings.PUBLISHED_MODELS}  # their labels also say which weights
KINDS = {judge.SUPPORTED: "yes", judge.CONTRADICTED: "no", judge.INCONCLUSIVE: "noise"}
KINDS |= {judge.UNTESTED: "open", NO_NUMBER: "open"}
SIGNS = {"yes": "✓", "no": "✗", "noise": "≈", "open": "·"}


@dataclass(frozen=True)
class Verdict:
    """Verdict of one subject's numbers on a claim. kind: yes, no, noise or open.

    counts: number of comparisons that support it. effect: of the comparison least in the claim's favour.
    """

    subject: str
    kind: str
    words: str
    counts: str = ""
    effect: str = ""

    @property
    def sign(self) -> str:
        """Return the verdict without colour or words."""
        return SIGNS[self.kind]


@dataclass(frozen=True)
class ShownClaim:
    """A claim, its place, and the verdicts: of the paper's printed numbers, and of each measured subject.

    supported: number of pretrained models that support it, in words; '' if it is not counted. words: the paper's
    statement, with its place, or the title of the claim's table; '' if neither is shown.
    """

    text: str
    target: str
    printed: Verdict
    measured: tuple[Verdict, ...]
    supported: str = ""
    words: str = ""


def of(target: str, built: dict, measured: bool = True) -> list[ShownClaim]:
    """Return the claims of one table's JSON form, without those on the paper's models if none is known there.

    measured: whether anything was measured on them, beyond values that follow from their shape.
    """
    shown_claims, paper_label = [], PAPERS_OWN if measured else SHAPES
    labels = {s["name"]: SHORT.get(s["name"], s["label"]) or paper_label for s in built["subjects"]}
    for claim in built["claims"]:
        printed = _verdict(PRINTED, claim_verdicts.in_print([claim]))
        verdicts = tuple(_verdict(label, claim_verdicts.on_model([claim], name)) for name, label in labels.items())
        shown_claims.append(ShownClaim(claim["text"], target, printed, verdicts))
    with_verdict = {verdict.subject for claim in shown_claims for verdict in claim.measured if verdict.kind != "open"}
    if paper_label in with_verdict:
        return shown_claims
    return [replace(c, measured=tuple(v for v in c.measured if v.subject != paper_label)) for c in shown_claims]


def abstract(finding: SummaryLine, built: Mapping[str, dict]) -> ShownClaim:
    """Return a sentence of an abstract with its verdicts on the pretrained models (`findings.row`).

    built: the JSON forms of its tables, by target.
    """
    judged = findings.row(finding, built)
    measured = (_verdict(settings.HEADS[name], judged.measured[name]) for name in settings.PUBLISHED_MODELS)
    words = f"“{finding.words}” ({finding.where})" if finding.words else ""
    printed = _verdict(PRINTED, judged.printed)
    return ShownClaim(judged.sentence, judged.target, printed, tuple(measured), judged.supported(), words)


def _verdict(subject: str, shown: ShownVerdict) -> Verdict:
    words = f"{shown.verdict}: {shown.reason}" if shown.reason else shown.verdict
    return Verdict(subject, KINDS[shown.verdict], words, shown.counts, "worst case: " * shown.several + shown.effect)


def tally(claims: Iterable[ShownClaim]) -> dict[str, dict[str, int]]:
    """Count the claims with each kind of verdict, by subject.

    Printed numbers come first, then all subjects with any verdict.
    """
    counts_by_subject: dict[str, dict[str, int]] = {}
    for claim in claims:
        for verdict in (claim.printed, *claim.measured):
            counts = counts_by_subject.setdefault(verdict.subject, dict.fromkeys(SIGNS, 0))
            counts[verdict.kind] += 1
    return {name: counts for name, counts in counts_by_subject.items() if sum(counts.values()) > counts["open"]}


def aligned(claim: ShownClaim, subjects: Sequence[str]) -> ShownClaim:
    """Return a claim with a verdict of each of these subjects, in their order; open if its table does not show one."""
    verdicts = {name: Verdict(name, "open", judge.UNTESTED) for name in subjects}
    verdicts |= {verdict.subject: verdict for verdict in claim.measured}
    return replace(claim, measured=tuple(verdicts[name] for name in subjects))


def titled(claim: ShownClaim) -> ShownClaim:
    """Return a claim with the title of its table, which distinguishes equal statements of several tables."""
    table = registry.get(claim.target)
    return replace(claim, words=table.title.removeprefix(f"{registry.TITLES[table.paper]}, "))
