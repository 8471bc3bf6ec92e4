"""What papers' READMEs and the pages of league and refit tell of results: every number is a record's or the paper's own.

Numbers without a decimal point and below 1,000 are not looked at: most of them are layers, samples and settings.
"""

import re
from collections import Counter
from functools import cache
from itertools import chain, permutations, product

import numpy as np
import pytest

from common.calibration.mmlu_questions import MMLU
from common.evaluation.significance import interval
from common.records.results import NOWHERE, Store
from common.utils.paths import ROOT
from reproductions import audit
from reproductions.audit.engine import SLIP
from reproductions.render import chance_levels, show
from reproductions.spec import registry, reported, subjects

STORE = Store(NOWHERE)
SMOLLM2 = subjects.of_model("smollm2-135m-instruct")
# A section is about the models that its heading names; the league's page is about SmolLM2.
SMALLER, LARGER = (subjects.of_model(f"qwen2.5-coder-{size}-instruct") for size in ("0.5b", "1.5b"))
SUBJECTS = {
    "SmolLM2": (SMOLLM2,),
    "Qwen2.5-Coder models": (SMALLER, LARGER),
    "Qwen2.5-Coder-0.5B": (SMALLER,),
    "Qwen2.5-Coder-1.5B": (LARGER,),
    "toy model": (subjects.TOY,),
}
# A table's row about one of a section's models begins with its size.
SIZES = {"0.5B": SMALLER, "1.5B": LARGER}
ROW = re.compile(r"(?m)^\| (" + "|".join(map(re.escape, SIZES)) + r"), .*$")
# File -> the heading that its results begin with.
FILES = {paper: {f"papers/{paper}/README.md": "# "} for paper in registry.PAPERS}
FILES[registry.LEAGUE] = dict.fromkeys(("docs/league.md", "docs/accuracy.md"), "# ")
FILES[registry.LEAGUE] |= {"extensions/refit/README.md": "## How well it works"}
NUMBER = re.compile(r"(?<![\w.:@-])(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?!\w|[.,]\d)")
# A difference with its interval: "6.7 % [5.1, 8.4]", "−1.7 [−5.2, 1.4]", "by 8.0 points [2.0, 13.9]".
EFFECT = re.compile(r"([+−]?\d+\.\d+)(?: %| points)?\s+\[([+−]?\d+\.\d+), ([+−]?\d+\.\d+)\]")
GENERATED = re.compile(r"<!-- ([\w-]+) -->.*?<!-- end \1 -->", re.S)
ASIDE = re.compile(
    r"```.*?```|`[^`]*`|!?\[[^]]*\]\([^)]*\)|\b(Theorems?|Eqs?\.) [\d.]+( and [\d.]+)?|\b\d{4}\.\d{5}", re.S
)
# Neither a record's value nor a printed one: settings, and what follows from several values by the words around it.
OTHERWISE = {
    "linearpatch": dict.fromkeys(("2.2", "2.6"), "about")
    | {"8.06": "of the paper's shape", "4096": "channels", "10,042": "questions", "49,152": "tokens"},
    "prunecomp": {"49,152": "tokens", "14.8": "of two averages", "0.9": "about", "1.3": "about", "2.5": "about"},
    "laco": {"11008": "a shape", "4096": "a shape", "98,304": "tokens"},
    "reassessing": {"33.3": "chance level"} | dict.fromkeys((".82", ".74", ".93", ".98"), "LaCo's Figure 5a"),
    "league": {"1,536": "neurons", "37.5": "chance level"}
    | dict.fromkeys(("0.001", "0.01"), "a ridge")
    | dict.fromkeys(("2.5", "5.8"), "the original's less no repair's")
    | dict.fromkeys(("23.9", "46.2", "23.5", "29.0"), "a category of MMLU, see below")
    | dict.fromkeys(("2017", "2022", "2025", "2026"), "a year"),
}


def told(paper):
    """(subjects, text) of each section that tells results, and of each row about one of its models.

    Without code, links, pictures and what is generated.
    """
    parts = ("".join((ROOT / name).read_text().partition(start)[1:]) for name, start in FILES[paper].items())
    text = GENERATED.sub("", "\n".join(parts))
    for section in re.split(r"(?m)^##? ", text)[1:]:
        head, _, body = section.partition("\n")
        named = (subjects_ for word, subjects_ in SUBJECTS.items() if word in head)
        about = next(named, (SMOLLM2,) if paper == registry.LEAGUE else ())
        rows = [((SIZES[row[1]],), row[0]) for row in ROW.finditer(body) if SIZES[row[1]] in about]
        for subject, part in [*rows, (about, ROW.sub("", body) if rows else body)] if about else ():
            yield subject, re.sub(r"\s+", " ", ASIDE.sub(" ", re.sub(r"(?m)^\d+\. ", "", part)))


@cache
def entries(name, subject):
    """The rows of a target that have been measured."""
    table = registry.get(name)
    measured = show.entries(table, STORE, subject, table.rows(subject))
    return [entry | {"replicates": cache(entry["replicates"])} for entry in measured]  # each is asked of many pairs


def targets(paper):
    """Those of the paper, and the league's."""
    return [name for name, table in registry.targets().items() if table.paper in (paper, registry.LEAGUE)]


@cache
def differences(name, subject):
    """Differences between rows of a target with as many layers removed: sizes in order, and (row, other, column, unit)."""
    rows = entries(name, subject)
    choices = Counter((entry["sparsity"], _choice(entry)) for entry in rows)
    league, apart = registry.get(name).paper == registry.LEAGUE, []
    for (place, row), (behind, other) in permutations(enumerate(rows), 2):
        # the league's rows are choice by repair: not those that differ in both, of which there are a hundred thousand
        alone = any(choices[entry["sparsity"], _choice(entry)] == 1 for entry in (row, other))
        alike = _choice(row) == _choice(other) or _repair(row) == _repair(other)
        if row["sparsity"] != other["sparsity"] or (league and not alone and not alike):
            continue
        for column in row["scores"].keys() & other["scores"].keys():
            for unit, value in _differences(row["scores"][column], other["scores"][column]):
                if unit == "%" or place < behind:  # the other way round points are as many
                    apart.append((abs(value), (row, other, column, unit)))
    apart.sort(key=lambda pair: pair[0])
    return np.array([size for size, _ in apart]), [pair for _, pair in apart]


def _choice(entry):
    return entry["method"].partition(", ")[0]


def _repair(entry):
    return entry["method"].partition(", ")[2]


def printed_forms(value):
    """How a value may be written: as it is or as a percentage, rounded to up to three digits, without a sign."""
    if not np.isfinite(value):
        return set()
    return {f"{abs(scale * value):.{digits}f}" for scale in (1, 100) for digits in range(4)}


def _held_out(entry):
    """The losses on held-out rows after each training behind an entry."""
    trainings = [record["details"].get("training") for record in entry["records"].values()]
    return [training["validation"][-1][1] for training in trainings if training and training.get("validation")]


def test_a_row_that_names_a_size_is_about_that_model_alone():
    for size, subject in SIZES.items():
        about = [subjects for subjects, text in told("linearpatch") if f"| {size}, " in text]
        assert about and set(about) == {(subject,)}


@pytest.mark.slow
@pytest.mark.parametrize("paper", FILES)
def test_each_number_told_is_a_records_or_printed_by_the_paper(paper):
    tables = reported.tables(paper) if paper in registry.PAPERS else ()
    in_print = {number.text for table in tables for number in reported.numbers(paper, table)}
    for about, text in told(paper):
        known = set(in_print)
        for name, subject in product(targets(paper), about):
            for entry in entries(name, subject):
                for value in (*entry["scores"].values(), *_held_out(entry)):
                    known |= printed_forms(value)
        text, unknown = EFFECT.sub("", text), []
        for match in NUMBER.finditer(text):
            number = match[0].replace(",", "")
            if ("." in number or len(number) > 3) and match[0] not in OTHERWISE[paper]:
                whole = "0" + number if number.startswith(".") else number
                if whole not in known:
                    unknown.append(text[max(match.start() - 40, 0) : match.end()])
        assert not unknown, "\n".join([f"{paper}, {[subject.name for subject in about]}: no record has", *unknown])


@pytest.mark.slow
@pytest.mark.parametrize("paper", FILES)
def test_each_interval_told_is_that_of_two_rows(paper):
    unknown = []
    for about, text in told(paper):
        for match in EFFECT.finditer(text):
            difference, *ends = (float(part.replace("−", "-")) for part in match.groups())
            told_as = {tuple(sorted(ends)), tuple(sorted(-end for end in ends))}
            near = {}
            apart = (_so_far_apart(paper, subject, difference) for subject in about)
            for ends_of_pair, rows in chain.from_iterable(apart):
                near[ends_of_pair] = rows
                if ends_of_pair in told_as:
                    break
            else:
                unknown.append(f"{[one.name for one in about]}: {match[0]}; rows so far apart: {near}")
    assert not unknown, "\n".join(unknown)


def _so_far_apart(paper, subject, difference):
    """The interval of every pair of rows that differ by so much, and what they are."""
    for value, ends in _by_claims(paper, subject):
        if abs(abs(value) - abs(difference)) <= 0.0501:
            yield ends, None
    for name in targets(paper):
        sizes, pairs = differences(name, subject)
        first, last = np.searchsorted(sizes, (abs(difference) - 0.0501, abs(difference) + 0.0501))
        for row, other, column, unit in pairs[first:last]:
            ends = _interval(row["replicates"](column), other["replicates"](column), unit)
            yield ends, (row["method"], other["method"])


@cache
def _by_claims(paper, subject):
    """(difference, interval) of the comparisons that claims make over more items than the tables show."""
    built = [show.build(table, STORE, subject) for table in registry.targets().values() if table.paper == paper]
    judged = [claim["judged"].get(subject.name) for content in built for claim in content["claims"]]
    compared = [comparison for verdict in judged if verdict for comparison in verdict["comparisons"]]
    return [
        (comparison["difference"], tuple(round(end, 1) for end in comparison["interval"]))
        for comparison in compared
        if comparison["whole"] and comparison["interval"]
    ]


def _differences(value, other):
    """(unit, difference): in percent, in points, and of shares in points."""
    if not other:
        return ()
    return ("%", 100 * (value / other - 1)), ("points", value - other), ("share", 100 * (value - other))


def _interval(row, other, unit):
    """The interval of a difference at one digit; None: it has none."""
    if np.ndim(row) == 0 or np.ndim(other) == 0:
        return None
    difference = 100 * (row / other - 1) if unit == "%" else (row - other) * (100 if unit == "share" else 1)
    return tuple(round(float(end), 1) for end in interval(difference))


OWN_FINDINGS = (ROOT / "docs/findings.md").read_text().partition("## Findings of this")[2]
FINDINGS = re.findall(r"(?m)^- (.*(?:\n  .*)*)", OWN_FINDINGS)
NAMED_TARGETS = [(text, sorted(registry.targets().keys() & set(re.findall(r"`([\w-]+)`", text)))) for text in FINDINGS]


def _numbers(text):
    """The numbers of a finding that are looked at: with a decimal point, or of three digits and more."""
    for match in NUMBER.finditer(EFFECT.sub("", re.sub(r"\s+", " ", ASIDE.sub(" ", text)))):
        number = match[0].replace(",", "")
        if "." in number or len(number) > 2 and number != "1000":
            yield number


@pytest.mark.slow
@pytest.mark.parametrize(("text", "names"), [pair for pair in NAMED_TARGETS if pair[1]])
def test_each_number_of_a_finding_is_a_records_of_the_tables_that_it_names(text, names):
    """As it is, in percent less, as a share of another row's or as a difference from it, its interval included."""
    numbers = set(_numbers(text))
    known = set() if "table2-laco" not in names else _above_chance()
    about = {SMOLLM2}.union(*(named for word, named in SUBJECTS.items() if word in text))
    for name in names:
        for subject in about:
            for entry in entries(name, subject):
                for value in (*entry["scores"].values(), *_held_out(entry)):
                    known |= printed_forms(value) | (printed_forms(np.exp(value)) if value < 20 else set())
            for one, other, column, unit in differences(name, subject)[1] if numbers - known else ():
                known |= _told_of_pair(one, other, column, unit, numbers)
    assert numbers <= known


def _told_of_pair(row, other, column, unit, numbers):
    """How a difference that is told may be written, and the ends of its interval."""
    here, there = row["scores"][column], other["scores"][column]
    forms = printed_forms(dict(_differences(here, there)).get(unit)) | printed_forms(here / there)
    if not forms & numbers:
        return set()
    mine, its = row["replicates"](column), other["replicates"](column)
    if np.ndim(mine) and np.ndim(its):
        for end in (*interval(mine - its), *interval(100 * (mine / its - 1)), *interval(mine / its)):
            forms |= printed_forms(float(end))
    return forms


def _above_chance():
    """What rows of LaCo's Table 2 retain on SmolLM2, in all and above chance level, with intervals."""
    source = next(source for source in chance_levels.SOURCES if source.paper == "laco")
    rows = chance_levels.measured(source, STORE, SMOLLM2)
    return {f"{abs(number):.1f}" for row in rows for number in (row.retained, row.above, *(row.interval or ()))}


def test_the_findings_name_tables_and_repeat_the_audits_numbers():
    assert len(FINDINGS) > 2 and sum(bool(names) for _, names in NAMED_TARGETS) > 1
    findings = audit.findings()
    wrong = [finding for finding in findings if finding.headline]
    slips = [finding for finding in findings if finding.verdict == SLIP]
    numbers = sum(len(reported.numbers(paper, table)) for paper in registry.PAPERS for table in reported.tables(paper))
    first = re.sub(r"\s+", " ", FINDINGS[0])
    counts = f"checked {numbers} printed", f"has {len(findings)} findings", f"{len(slips)} of them slips"
    assert all(count in first for count in (*counts, f"{len(wrong)} affect numbers"))
    headlines = " ".join(finding.headline for finding in wrong if finding.name in ("PC-2", "LC-2", "RE-6"))
    assert all(number in headlines for number in re.findall(r"\d+\.\d+", first))


@pytest.mark.parametrize("paper", registry.PAPERS)
def test_a_papers_page_names_the_numbers_of_its_claims(paper):
    lines = (ROOT / "docs" / "findings.md").read_text().splitlines()
    rows = [re.match(r"\| (\d+) \|.*`([\w-]+)` \|$", line) for line in lines]
    own = {int(row[1]) for row in rows if row and row[2].endswith(f"-{paper}")}
    sentence = re.search(r"has the verdicts: (.*)", (ROOT / "papers" / paper / "README.md").read_text())[1]
    spans = [(int(first), int(last or first)) for first, last in re.findall(r"(\d+)(?: (?:to|and) (\d+))?", sentence)]
    assert {number for first, last in spans for number in range(first, last + 1)} == own and own


# Models of README's table of losses -> (the model, the tables that its numbers are of).
LOSSES = {
    "SmolLM2": (SMOLLM2, ("league",)),
    "Qwen2.5-Coder-0.5B": (SMALLER, ("league",)),
    "Qwen2.5-Coder-1.5B": (LARGER, ("league", "league-questions")),
}


@pytest.mark.slow
def test_what_readme_says_that_models_lost_stands_in_the_tables():
    """All numbers of a line are of one row of each table, with as many layers removed, repaired or not as README says."""
    text = (ROOT / "README.md").read_text().partition("| Model | Layers removed |")[2].partition("\n\n")[0]
    subject, names, looked_at = None, (), 0
    for line in text.splitlines()[2:]:
        head, removed, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        if head:
            subject, names = LOSSES[head.partition(" (")[0]]
        of = re.match(r"(\d+) of (\d+), (no repair|refit)", removed)
        tables = []
        for name in names:
            rows = [row for row in entries(name, subject) if (_is(row, *of.groups()) if of else row["dense"])]
            tables += [[set().union(*map(printed_forms, row["scores"].values())) for row in rows]]
            looked_at += bool(rows)
        expected = set(filter(None, numbers))
        assert any(expected <= set().union(*chosen) for chosen in product(*filter(None, tables))), line
    assert looked_at > 8


def _is(entry, count, layers, repair):
    label = getattr(entry["spec"], "repaired", entry["method"])
    repaired = "refit" in label if repair == "refit" else label in ("no repair", "LLM-Streamline(None)")
    return entry["sparsity"] == f"{count}/{layers}" and repaired


def test_the_categories_of_mmlu_on_the_page_about_accuracy_are_the_records():
    shares = {}
    for row in registry.get("league-questions").rows(LARGER):
        record = STORE.get(row.recipe, "mmlu@first-500") if row.recipe else None
        subjects_of_row = record.details["subjects"] if record is not None and row.sparsity == "7/28" else {}
        for category, names in MMLU.items() if subjects_of_row else ():
            shares[row.method, category] = 100 * np.mean([subjects_of_row[f"mmlu_{name}"]["acc"] for name in names])
    page = re.sub(r"\s+", " ", (ROOT / "docs/accuracy.md").read_text())
    for words, category in (("the humanities rise ", "Humanities"), ("STEM rises ", "STEM")):
        before, after = shares["l/none", category], shares["l/refit/arc", category]
        assert f"{words}from {before:.1f} to {after:.1f} %" in page
