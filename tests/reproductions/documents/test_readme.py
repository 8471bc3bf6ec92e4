"""README and docs say what the published records, the claims and the reported numbers say."""

import dataclasses
import re

import pytest
from audit_numbers import without_number
from matplotlib.figure import Figure
from tools import status_of

from common.records.results import Store
from common.utils.paths import ROOT
from reproductions.documents import findings, readme
from reproductions.render import claim_verdicts, show
from reproductions.spec import registry, reported
from reproductions.spec.subjects import TOY


def test_counts_are_those_of_the_shown_table(evidence):
    table = registry.get("table1-linearpatch")
    store = evidence.store
    counts = readme.counts(table, store)
    assert counts["reported"] == len(reported.numbers("linearpatch", "1"))
    rows = show.build(table, store, TOY, claims=False)["rows"]
    pruned = [row for row in rows if row["profile"] == "standin" and not row["dense"]]
    own = [cell for row in pruned for cell in row["cells"].values()]
    assert counts["toy model"] == sum(cell["reproduced"] is not None for cell in own) > 100
    assert counts["paper"] == 0  # ratios and counts follow from shapes: nothing is measured on the paper's models


def test_every_target_is_named_and_the_sums_add_up(tmp_path):
    text = readme.overview(readme.by_paper(Store(tmp_path, None)))  # of printed numbers; nothing is measured
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    for paper, (_, named, in_print, *measured) in zip(registry.PAPERS, lines, strict=True):
        own = {name: table for name, table in registry.targets().items() if table.paper == paper}
        assert set(written_out(paper, named)) == own.keys()
        numbers = sum(len(reported.numbers(paper, table.number)) for table in own.values())
        assert numbers == int(in_print.replace(",", ""))
        assert set(measured) == {"0"}
    rest = {table.paper for table in registry.targets().values()} - set(registry.PAPERS)
    assert rest == {registry.LEAGUE}


def written_out(paper, named):
    """The names of targets behind "`table` 1 to 3, A1; `grid`"."""
    for part in named.split("; "):
        word, *numbers = re.split(r"` |, ", part.strip("`"))
        for number in numbers:
            first, _, last = number.partition(" to ")
            if first.isdecimal():
                span = range(int(first), int(last or first) + 1)
            else:
                span = (f"{first[:-1]}{chr(end)}" for end in range(ord(first[-1]), ord((last or first)[-1]) + 1))
            yield from (f"{word}{n}-{paper}" for n in span)
        if not numbers:
            yield word


@pytest.mark.slow
def test_what_is_written_from_records_is_up_to_date():
    texts = {path: path.read_text() for path in readme.FILES}
    contents = readme.parts(name for text in texts.values() for name in readme.marked(text))
    for path, text in texts.items():
        assert readme.render(text, contents) == text, f"{path.name}: run `make readme`"


def test_every_sentence_of_the_screen_has_its_claims():
    for paper, sentences in findings.ABSTRACTS.items():
        for line in sentences:
            table = registry.get(line.target)
            assert table.paper == paper
            for target in (line.target, *line.printed):
                assert set(line.ids) <= {claim.id for claim in registry.get(target).claims}, (target, line.ids)
    for line in findings.OURS:  # about no paper's sentence: exactly one claim
        claims = [claim for claim in registry.get(line.target).claims if claim.id in line.ids]
        assert len(claims) == 1, (line.target, line.ids)


def test_claim_ids_are_unique_and_stay_readable():
    ids = [table.claim_id(claim) for table in registry.targets().values() for claim in table.claims]
    assert len(ids) == len(set(ids)) > 100
    assert all(re.fullmatch(r"[a-z]+/[a-z0-9-]+/[a-z0-9-]+", name) for name in ids), ids


def test_a_line_of_the_screen_counts_comparisons_and_shows_the_worst(one_model):
    def judged(verdict, differences):
        counts = {"supported": sum(d > 1 for d in differences), "inconclusive": 0, "contradicted": 0}
        common = {"unit": "points", "paired": True, "against": 1, "about": "a"}
        cells = [
            common
            | {"difference": d, "interval": [d - 1, d + 1], "slack": d}
            | {"verdict": "supported" if d > 0 else "contradicted"}
            for d in differences
        ]
        worst = min(cells, key=lambda cell: cell["difference"])
        return {"verdict": verdict, "counts": counts, "comparisons": cells} | worst

    def claim(name, text, holds, *judgement):
        reported_of = [[f"{name} {n}", hold, None] for n, hold in enumerate(holds)]
        reported = {"reported": all(holds), "reported_counts": [sum(holds), len(holds)], "reported_of": reported_of}
        return reported | {"id": f"p/t/{name}", "text": text, "judged": {"standin": judged(*judgement)}}

    empty = {"verdict": "not tested", "counts": {}, "comparisons": [], "reason": "no results"}
    claims = [
        claim("above-b", "a is above b", [True] * 4, "supported", [2, 3]),
        claim("above-c", "a is above c", [False, True, True, True], "contradicted", [-5, 4]),
        claim("another", "another", [False], "contradicted", [-9]),
    ]
    for claim in claims:
        claim["judged"]["smollm2-135m-instruct"] = empty
    line = findings.row(findings.SummaryLine("A beats all", "t", ("above-b", "above-c")), {"t": {"claims": claims}})
    assert line.cells() == [
        "A beats all",
        "contradicted (7 of 8 comparisons support it, not enough)",
        "not tested",
        "contradicted (3 of 4 comparisons support it, not enough); worst case: 5.0 points less, 95 % CI −6.0 to −4.0",
        "not tested",
        "`t`",
    ]
    assert line.measured["smollm2-135m-instruct"].reason == "no results"


@pytest.fixture
def one_model(monkeypatch):
    """Only SmolLM2's results are published."""
    monkeypatch.setattr(findings.subjects, "PUBLISHED_MODELS", ("smollm2-135m-instruct",))
    monkeypatch.setattr(findings, "SHOWN", ("smollm2-135m-instruct", "standin"))


def line_of(printed, *measured):
    """A line of the findings with these verdicts: in print, on SmolLM2, on the toy model."""
    sides = dict(zip(findings.SHOWN, map(claim_verdicts.ShownVerdict, measured), strict=True))
    return findings.JudgedLine("a", claim_verdicts.ShownVerdict(printed), sides, "t")


def test_a_group_counts_its_lines_by_verdict_on_every_side(one_model):
    rows = [
        line_of("supported", "inconclusive", "contradicted"),
        line_of("no number", "not tested", "contradicted"),
        line_of("supported", "contradicted", "supported"),
    ]
    assert findings.tally(rows) == ["2 supported", "1 contradicted, 1 inconclusive", "1 supported, 2 contradicted"]
    assert findings.tally([rows[1]]) == ["none tested", "none tested", "1 contradicted"]


def test_a_claim_is_supported_on_as_many_models_as_test_it(monkeypatch):
    """The toy model counts nowhere, and a model that does not test the claim counts in neither number."""
    monkeypatch.setattr(findings.subjects, "PUBLISHED_MODELS", ("a", "b", "c"))
    monkeypatch.setattr(findings, "SHOWN", ("a", "b", "c", "standin"))
    assert line_of("supported", "supported", "not tested", "inconclusive", "supported").supported() == "1 of 2"
    assert line_of("supported", "not tested", "not tested", "not tested", "supported").supported() == "not tested"


def test_a_norms_bars_end_no_cell(monkeypatch):
    claim = {"text": "||B|| < 1", "reported": None, "reported_counts": [0, 0], "judged": {}}
    monkeypatch.setattr(findings, "_built", lambda store, target: {"claims": [claim]})
    lines = findings.every("reassessing", None).splitlines()
    assert any(line.startswith(r"| \|\|B\|\| < 1 | no number |") for line in lines)
    for line in filter(lambda line: line.startswith("|"), lines):
        assert line.replace(r"\|", "").count("|") == 1 + len(findings.SIDES) + 1


def test_the_screen_is_of_the_published_records(evidence):
    """A line of it against the table that `show` prints."""
    store = evidence.store
    table = registry.get("table4-laco")
    content = show.build(table, store, show.published(table, store))
    line = findings.row(findings.SummaryLine("s", "table4-laco", ("falls-with-size",)), {"table4-laco": content})
    (claim,) = (claim for claim in content["claims"] if claim["id"] == "laco/t4/falls-with-size")
    holding, compared = claim["reported_counts"]
    assert claim["reported"] and 0 < holding < compared
    assert str(line.printed) == f"supported ({holding} of {compared} comparisons support it)"
    assert line.measured["standin"].effect == claim_verdicts.effect(claim["judged"]["standin"])


def test_the_page_of_claims_numbers_them():
    text = (ROOT / "docs/findings.md").read_text()
    sentences = [line.sentence for lines in (*findings.ABSTRACTS.values(), findings.OURS) for line in lines]
    assert re.findall(r"(?m)^\| (\d+) \| (.*?) \|", text) == [(str(n), line) for n, line in enumerate(sentences, 1)]


def test_each_claim_of_a_paper_has_the_papers_words():
    for line in (line for lines in findings.ABSTRACTS.values() for line in lines):
        assert len(line.words.split()) > 3 and line.where, line.sentence
    assert not any(line.words for line in findings.OURS)


def test_a_line_of_an_unknown_paper_is_refused():
    line = {"paper": "laco", "sentence": "s", "target": "t", "ids": "a b", "printed": "", "words": "", "where": ""}
    assert findings._by_paper([line])["laco"] == (findings.SummaryLine("s", "t", ("a", "b")),)
    with pytest.raises(KeyError, match="lacoo"):
        findings._by_paper([line | {"paper": "lacoo"}])


def test_the_writer_has_help_and_refuses_arguments(monkeypatch, capsys):
    monkeypatch.setattr(readme, "parts", lambda *_: pytest.fail("something is written"))
    assert status_of(readme.main, ["--help"]) == 0 and f"python -m {readme.__name__}" in capsys.readouterr().out
    assert status_of(readme.main, ["--check"]) == 2 and "there is no option --check" in capsys.readouterr().err


def test_readme_is_short_and_its_parts_are_known():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert readme.marked(text) == ["papers", "chance"]
    for path in readme.FILES:
        text = path.read_text()
        names = readme.marked(text)
        parts = {name: re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end", text, re.S)[1] for name in names}
        filled = readme.render(text, {name: f"what {name} says" for name in names})
        assert all(f"what {name} says" in filled for name in names)
        assert readme.render(filled, parts) == text


def test_the_picture_has_every_claim_of_the_papers_with_its_verdicts(one_model, tmp_path, monkeypatch):
    """Without the toy model and the extensions: each line's verdicts in their order."""
    drawn, lines = [], {}

    def judged(sentence, built):
        measured = "not tested" if len(lines) % 2 else "contradicted"
        line = dataclasses.replace(line_of("supported", measured, "inconclusive"), sentence=sentence.sentence)
        lines[sentence.sentence] = line
        return line

    monkeypatch.setattr(findings, "_built_for", lambda *_: {})
    monkeypatch.setattr(findings, "row", judged)
    monkeypatch.setattr("figures.claims_overview.draw", lambda groups, sides: drawn.append((groups, sides)) or Figure())
    findings.drawn(None, tmp_path)
    ((groups, sides),) = drawn
    shown = [line for group in groups.values() for line in group]
    assert [line.claim for line in shown] == [without_number(sentence) for sentence in lines]
    for line, judged_line in zip(shown, lines.values(), strict=True):
        measured = judged_line.measured["smollm2-135m-instruct"].verdict
        assert len(line.sides) == len(sides)
        assert [verdict for verdict, _ in line.sides] == ["supported", measured.replace("not tested", ""), ""]
