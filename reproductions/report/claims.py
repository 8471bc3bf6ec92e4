"""The papers' claims as pages show them. The one place that knows the form in which tables give their verdicts."""

from __future__ import annotations

from dataclasses import dataclass, replace

PRINTED = "printed numbers"
PAPERS_OWN = "the paper’s models"
SIGNS = {True: ("holds", "✓"), False: ("does not hold", "✗"), None: ("not measured", "·")}


@dataclass(frozen=True)
class Verdict:
    """What one subject's numbers say of a claim. kind: yes, no or open. detail: a word on why."""

    subject: str
    kind: str
    words: str
    sign: str
    detail: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim, where it stands, and the verdicts: of the paper's printed numbers, and of each subject measured."""

    text: str
    target: str
    printed: Verdict
    measured: tuple[Verdict, ...]


def of(target: str, built: dict) -> list[Claim]:
    """The claims of one table's JSON form."""
    labels = {subject["name"]: subject["label"] or PAPERS_OWN for subject in built["subjects"]}
    return [
        Claim(
            found["text"],
            target,
            _verdict(PRINTED, found["reported"]),
            tuple(_verdict(labels[name], verdict) for name, verdict in found["by_subject"].items()),
        )
        for found in built["claims"]
    ]


def _verdict(subject: str, verdict: bool | None) -> Verdict:
    words, sign = SIGNS[verdict] if subject != PRINTED or verdict is not None else ("no number", "·")
    return Verdict(subject, {True: "yes", False: "no", None: "open"}[verdict], words, sign)


def tally(claims: list[Claim]) -> dict[str, dict[str, int]]:
    """Subject -> how many claims hold, do not hold, and are open; printed numbers first, then who has any verdict."""
    found: dict[str, dict[str, int]] = {}
    for claim in claims:
        for verdict in (claim.printed, *claim.measured):
            counts = found.setdefault(verdict.subject, {"yes": 0, "no": 0, "open": 0})
            counts[verdict.kind] += 1
    return {name: counts for name, counts in found.items() if counts["yes"] or counts["no"]}


def aligned(claim: Claim, subjects: list[str]) -> Claim:
    """A claim with a verdict of each of these subjects, in their order; open where its table does not show one."""
    found = {verdict.subject: verdict for verdict in claim.measured}
    return replace(claim, measured=tuple(found.get(name) or _verdict(name, None) for name in subjects))
