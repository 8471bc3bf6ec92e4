"""README, docs and the papers' READMEs keep to the rules of how this project writes, and their links lead somewhere.

Left out of the rules on sentences: code, tables, headings, what is generated from results, and the archive of old changes.
"""

import re
import statistics
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROSE = [
    "README.md",
    "CHANGELOG.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/*.md"))),
    *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("papers/*/README.md"))),
    "extensions/refit/README.md",
]
LINKED = [
    *(path.name for path in sorted(ROOT.glob("*.md"))),
    *(path for path in PROSE if "/" in path),
    "papers/AUDIT.md",
    "benchmarks/README.md",
    "common/toy/weights/README.md",
    "reproductions/results/README.md",
]

GENERATED = re.compile(r"<!-- ([\w-]+) -->.*?<!-- end \1 -->", re.S)
FENCE = re.compile(r"^( *)```.*?^\1```", re.S | re.M)
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")
SHORTENED = re.compile(r"\b(Eqs?|Figs?|et al|e\.g|i\.e|vs|arXiv|No|Avg|Per)\.$")
# Names of tables, equations, works and versions are no statements.
NAMED = re.compile(
    r"\b(Tables?|Figures?|Figs?\.|Eqs?\.|Theorems?|[Ss]ections?|Algorithm|lm-eval|version|Python|H|RE|LP|LC|PC)[ -]"
    r"[A-Z]?[\d.]+\w?((, | and | to )[A-Z]?[\d.]+\w?)*|\b\d{4}\.\d{5}|\b(19|20)\d\d\b"
)
NUMBER = re.compile(r"(?<![\w.-])[+−]?\.?\d+(?:[.,]\d+)*(?:e\d+)?(?![\w])")
OLD_WORDS = re.compile(
    r"""(?<!residual\ )\bstream\b | \bthe\ cuts?\b | \bcut\ alone\b | \bgone\b | \bleast\ left\b | \bcarried\ over\b
    | \bstand-in\b | \bthe\ screen\b | \b(?:beyond|within)\ (?:the\ )?noise\b | \btold\ apart\b
    | \bguess(?:es|ing|er|er's)?\b | \brefitted,\  | \(ours\) | \b\d+/\d+\ layers\b
    | \bwindows?\ of\ (?:text|tokens|layers|\d) | \b(?:answers?|answering)\ (?:more|fewer|less)\b
    | \bby\ (?:questions|answers)\b | \[[LS]\]""",
    re.X,
)
# What defines an old word, or shows how old tables write, needs it.
DEFINED = {"docs/glossary.md", "docs/python-api.md"}


def prose(text):
    """Paragraphs and list items without code, tables, headings, pictures and what is generated; inline code as one word."""
    text = FENCE.sub("\n\n", GENERATED.sub("\n\n", text))
    paragraphs, current = [], []
    for line in [*text.splitlines(), ""]:
        begins = re.match(r"\s*([-*+]|\d+\.)\s+", line)
        apart = not line.strip() or line.lstrip().startswith(("|", "#", "<", "!["))
        if begins or apart:
            paragraphs += [" ".join(current)] if current else []
            current = []
        code = re.match(r" {4,}", line) and not current and not begins
        if not apart and not code:
            current.append(line[begins.end() :] if begins else line.strip())
    return [re.sub(r"`[^`]+`", "code", LINK.sub(lambda m: "" if m[1] else m[2], one)) for one in paragraphs]


def sentences(text):
    """The sentences of `prose`."""
    sentences = []
    for paragraph in prose(text):
        start = ""
        for piece in re.split(r"(?<=[.!?])[\"')*]*\s+", paragraph):
            start = f"{start} {piece}".strip()
            if not SHORTENED.search(start):
                sentences.append(start)
                start = ""
        sentences += [start] if start else []
    return [sentence for sentence in sentences if re.search(r"[A-Za-z]", sentence)]


def anchors(text):
    """The ids that GitHub gives to headings, and those that are written."""
    ids, seen = set(re.findall(r'\bid="([^"]+)"', text)), {}
    for title in re.findall(r"(?m)^#{1,6} +(.+?) *$", FENCE.sub("", text)):
        title = LINK.sub(lambda m: m[2], title).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        ids.add(slug + (f"-{seen[slug]}" if slug in seen else ""))
        seen[slug] = seen.get(slug, 0) + 1
    return ids


def test_sentences_are_taken_apart():
    text = """# Title

One sentence, with `code in it`. Another one by Eq. 2 and [a link](x.md)!
It goes on here.

| a table | of 1 |
| --- | --- |

- An item. Two of them
  over two lines.

    indented code. No sentence.

```
code. No sentence.
```
<!-- part -->
Generated. No sentence.
<!-- end part -->
"""
    assert sentences(text) == [
        "One sentence, with code.",
        "Another one by Eq. 2 and a link!",
        "It goes on here.",
        "An item.",
        "Two of them over two lines.",
    ]


def test_anchors_are_those_of_github():
    text = "# What, where?\n## `x.y` and Z\n## What, where?\n<a id='a'></a>\n<a id=\"b\"></a>"
    assert anchors(text) == {"what-where", "xy-and-z", "what-where-1", "b"}


@pytest.mark.parametrize("path", PROSE)
def test_sentences_are_short(path):
    counts = sorted(len(one.split()) for one in sentences((ROOT / path).read_text()))
    assert statistics.median(counts) <= 20
    longest = counts[-max(1, len(counts) // 10) :]
    assert longest[0] <= 35, f"the longest tenth begins at {longest[0]} words"


@pytest.mark.parametrize("path", PROSE)
def test_a_sentence_has_at_most_three_numbers(path):
    crowded = [one for one in sentences((ROOT / path).read_text()) if len(NUMBER.findall(NAMED.sub("", one))) > 3]
    assert not crowded, "\n".join(crowded)


@pytest.mark.parametrize("path", [path for path in PROSE if path not in DEFINED])
def test_words_are_those_of_the_glossary(path):
    used = [f"{m[0]}: {one}" for one in prose((ROOT / path).read_text()) for m in OLD_WORDS.finditer(one)]
    assert not used, "see docs/glossary.md:\n" + "\n".join(used)


@pytest.mark.parametrize("path", LINKED)
def test_links_and_anchors_are_alive(path):
    text, dead = FENCE.sub("", (ROOT / path).read_text()), []
    for *_, link in LINK.findall(re.sub(r"`[^`]+`", "", text)):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / path).parent / unquote(file) if file else ROOT / path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("path", [path for path in PROSE if path not in ("README.md", "CHANGELOG.md")])
def test_a_page_begins_with_what_its_reader_can_do_then(path):
    assert prose((ROOT / path).read_text())[0].startswith("After this page")


def test_each_term_is_defined_once_in_two_sentences():
    rows = re.findall(r"(?m)^\| (.+?) \| (.+?) \|$", (ROOT / "docs/glossary.md").read_text())
    defined = {term: meaning for term, meaning in rows if term not in ("Term", "---")}
    assert len(defined) == sum(term not in ("Term", "---") for term, _ in rows) > 40
    assert not [term for term, meaning in defined.items() if len(sentences(meaning)) > 2]
