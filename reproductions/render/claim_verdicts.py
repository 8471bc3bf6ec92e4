"""Say in words which verdict a claim has on each side: in the paper's printed numbers, and on each measured model.

Every function reads the JSON form of a table's claims (`reproductions.claims.verdicts.claims`).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from common.utils.errors import listed, plural
from common.utils.signs import signed
from reproductions.claims import verdicts
from reproductions.claims.verdicts import CONTRADICTED, INCONCLUSIVE, SUPPORTED, UNTESTED
from reproductions.spec.subjects import HEADS

NO_NUMBER = "no number"  # the verdict on printed numbers where the paper prints none
BY_REPLY = {True: SUPPORTED, False: CONTRADICTED, None: UNTESTED}
INTERVAL, BRIEF = ", 95 % CI {} to {}", " [{}, {}]"  # of a difference


@dataclass(frozen=True)
class ShownVerdict:
    """The verdict of one claim, or of several with the same statement, on one side.

    Attributes:
        verdict: One of `verdicts.WORDS`, or `NO_NUMBER`.
        counts: Number of comparisons that support the claim; '' if it is not informative.
        effect: The least favourable comparison with its interval; '' without any.
        brief: The same as a signed number, with its interval in brackets.
        several: Whether it is the least favourable of several.
        reason: Why the claim is not tested.
    """

    verdict: str
    counts: str = ""
    effect: str = ""
    brief: str = ""
    several: bool = False
    reason: str = ""

    @property
    def tested(self) -> bool:
        """Return whether there is a verdict."""
        return self.verdict in (SUPPORTED, CONTRADICTED, INCONCLUSIVE)

    def __str__(self) -> str:
        text = self.verdict + (f" ({self.counts})" if self.counts else "")
        return text + (f"{'; worst case' if self.several else ''}: {self.effect}" if self.effect else "")


def in_print(claims: Sequence[dict]) -> ShownVerdict:
    """Return the verdict of claims with the same statement, from the paper's printed numbers alone."""
    compared = sum(claim["reported_counts"][1] for claim in claims)
    if not compared:
        return ShownVerdict(NO_NUMBER)
    drawn = any(by_interval for claim in claims for *_, by_interval in claim["reported_of"])
    counts = count_significant(claims) if compared > 1 or drawn else ""
    return ShownVerdict(BY_REPLY[all(claim["reported"] for claim in claims)], counts)


def on_model(claims: Iterable[dict], name: str) -> ShownVerdict:
    """Return the verdict of claims with the same statement on one subject: the worst one, see `verdicts.together`."""
    judged = [claim["judged"][name] for claim in claims if name in claim["judged"]]
    worst = verdicts.together(judged)
    if worst is None:
        return ShownVerdict(UNTESTED, reason=next((verdict["reason"] for verdict in judged if "reason" in verdict), ""))
    several = worst["compared"] > 1
    counts = supporting(worst["holding"], worst["compared"], worst["verdict"] == CONTRADICTED) if several else ""
    return ShownVerdict(worst["verdict"], counts, effect(worst), effect(worst, brief=True), several)


def count_significant(claims: Sequence[dict]) -> str:
    """Count the comparisons of printed numbers that support claims, and the significant ones.

    Significant differences are larger than another sample of as many items might change. Comparisons of the same
    numbers count once.
    """
    comparisons = {name: (holds, by_interval) for claim in claims for name, holds, by_interval in claim["reported_of"]}
    holding = sum(holds for holds, _ in comparisons.values())
    drawn = [by_interval for _, by_interval in comparisons.values() if by_interval]
    text = supporting(holding, len(comparisons), not all(claim["reported"] for claim in claims))
    if drawn:
        of = f" of {len(drawn)}" * (len(drawn) < len(comparisons))
        text += f", {drawn.count(SUPPORTED)}{of} significant"
        text += f", {against} significantly against" if (against := drawn.count(CONTRADICTED)) else ""
    return text


def supporting(holding: int, compared: int, contradicted: bool) -> str:
    """Count the comparisons that support a claim; for a contradicted one, state that they are not enough."""
    if compared == 1:
        return "1 comparison"
    if holding == compared:
        return f"{'both' if compared == 2 else f'all {compared}'} comparisons support it"
    return f"{holding} of {compared} comparisons support it" + ", not enough" * (contradicted and holding > 0)


def in_table(claim: dict, name: str) -> str:
    """Return the verdict of one claim on one subject: every count, and the least favourable comparison."""
    judged = claim.get("judged", {}).get(name)
    if judged is None:
        return BY_REPLY[claim["by_subject"][name]]
    if not judged["comparisons"]:
        return f"{UNTESTED}: {judged['reason']}"
    count = len(judged["comparisons"])
    if count == 1:
        return f"{judged['verdict']}: {effect(judged)}"
    several = ", ".join(f"{number} {word}" for word, number in judged["counts"].items() if number)
    if judged["counts"][judged["verdict"]] == count:
        several = "both comparisons" if count == 2 else f"all {count} comparisons"
    return f"{judged['verdict']} ({several}); worst case: {effect(judged)}"


def in_print_of_table(claim: dict) -> str:
    """Return the verdict of one claim in the paper's printed numbers, for a table."""
    if claim["reported"] is None:
        return NO_NUMBER
    comparisons = claim.get("reported_of", ())
    several = len(comparisons) > 1 or any(by_interval for *_, by_interval in comparisons)
    return BY_REPLY[claim["reported"]] + (f" ({count_significant([claim])})" if several else "")


def effect(judged: dict, brief: bool = False) -> str:
    """Describe a difference, with its 95 % confidence interval and the claim's limit, if it is not zero.

    Args:
        judged: A comparison.
        brief: With a sign instead of the word for the direction, and with the interval in brackets.
    """
    if judged["difference"] is None:
        return "no finite number"
    form = {"points": "+.1f", "%": "+.1f", "% of dense": ".1f"}.get(judged["unit"], ".4g")
    number, *ends = (signed(value, form) for value in (judged["difference"], *(judged["interval"] or ())))
    text = f"{number} {judged['unit']}".strip()
    if form == "+.1f" and not brief:  # a difference: its direction in words
        words = ("less", "more") if judged["unit"] == "points" else ("lower", "higher")
        size = number.lstrip("+−")
        text = f"{size} {judged['unit']}" + f" {words[judged['difference'] >= 0]}" * (float(size) != 0)
    if not judged["unit"]:
        subject = judged["what"].partition(": ")[2]
        text = f"{subject}: {text}" if subject else text
    text += ((BRIEF if brief else INTERVAL).format(*ends) + " (unpaired)" * (not judged["paired"])) if ends else ""
    return text + (f", limit {judged['limit']}" if judged.get("limit") else "")


def notes(table: dict, shown: Collection[int]) -> list[str]:
    """Explain how claims were judged: intervals, unpaired ones, shared records, and what chance alone would do.

    shown: Numbers of the claims that the reader sees; no other is named.
    """
    drawn = [
        "Significant, of printed numbers: estimated, because the paper prints no outcomes. Each score has the standard error "
        "that follows from its number of items, and rows are taken as independent. So at least so many are significant."
    ] * any(c.get("reported_beyond", (0, 0))[1] for c in table["claims"])
    judged = [verdict for claim in table["claims"] for verdict in claim.get("judged", {}).values()]
    compared = [comparison for verdict in judged for comparison in verdict["comparisons"] if comparison["interval"]]
    if not compared:
        return drawn
    lines = [
        "95 % CI: interval of the difference, by a paired bootstrap over items (perplexity: sequences). Inconclusive: one "
        "end of it is for the claim and one against."
    ]
    if not all(comparison["paired"] for comparison in compared):
        lines[0] += (
            " Unpaired: outcomes per item were not kept. The rows' standard errors are taken as independent, so the "
            "interval is wider than a paired one."
        )
    if wholes := [comparison["whole"] for comparison in compared if comparison.get("whole")]:
        of = listed(list(dict.fromkeys(label for labels in wholes for label in labels)))
        use = "uses" if len(wholes) == 1 else "use"
        lines.append(
            f"{plural(len(wholes), 'comparison')} {use} all items of {of}, where both rows have them. The table shows the "
            "part that every row has."
        )
    for name, chance in table.get("chance", {}).items():
        if not chance["comparisons"]:
            continue
        shared = [
            number
            for number, c in enumerate(table["claims"], 1)
            if number in shown
            and (judged := c.get("judged", {}).get(name))
            and set(judged["shares_records_with"]) & set(shown)
        ]
        text = f"On {HEADS.get(name, name)} {plural(chance['comparisons'], 'comparison')} with an interval: were all "
        text += f"differences 0, on average at most about {chance['by_chance']:.1f} of them would be contradicted by chance."
        if chance["others"]:
            text += f" Not counted: {plural(chance['others'], 'comparison')} that a difference of 0 would contradict anyway."
        if shared:
            text += f" Claims {listed(shared)} partly use the same results, so they are not independent."
        lines.append(text)
    return [*lines, *drawn]
