"""LaCo's benchmarks (section 3.2) as lm-eval tasks: the option of lowest perplexity, or the generated answer.

The paper evaluates with OpenCompass and prints one prompt (XSum, Table 8). All other prompts are this project's, so
scores are comparable between models measured here, not with the paper's to the point. Perplexity of an option follows
OpenCompass: the entire text, question and option, is scored, the sum of its tokens' negative log-likelihoods divided by
its number of tokens. The lowest mean wins, so the length of an option counts (`SharedContextLM.sequence_nll`).

Everything is zero-shot; MMLU and CMMLU are lm-eval's tasks with five shots (`common.evaluation.harness.GROUPS`): their
options differ in one letter, the last token, so the lowest perplexity is the likeliest letter.
"""

import re
from functools import cache

import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

MAX_TOKENS = 2048  # what OpenCompass's base-model configurations read; longer texts lose their end
CHID_ITEMS, XSUM_ITEMS = 202, 1000
IDIOM_LETTERS = "ABCDEFGHIJ"


class PerplexityChoice(ConfigurableTask):
    """A multiple-choice task whose choices are entire texts; the text with the lowest mean loss per token is the answer."""

    def __init__(self, config: dict):
        config = {name: value for name, value in config.items() if name != "class"}
        super().__init__(config=config | {"process_results": self.process_results})

    def construct_requests(self, doc, ctx, **options) -> list[Instance]:
        """Return one request per choice, for its log-likelihood."""
        return [
            Instance("sequence_nll", doc, (text, MAX_TOKENS), index, metadata=options["metadata"])
            for index, text in enumerate(self.doc_to_choice(doc))
        ]

    def process_results(self, doc, results: list[float]) -> dict[str, float]:
        """Return 1 if the choice of lowest perplexity is right."""
        return {"score": float(results.index(min(results)) == self.doc_to_target(doc))}


# The prompts: documents to options, each a whole text.


def labelled(rows: datasets.Dataset) -> datasets.Dataset:
    """Return the rows with a label; annotators that disagreed left -1."""
    return rows.filter(lambda row: row["label"] >= 0)


def cmnli(doc: dict) -> list[str]:
    """Return the three texts of an item in the order of the hub's labels: neutral, entailment, contradiction."""
    texts = (
        "语句一：{0}\n语句二：{1}\n语句二和语句一没有必然联系。",
        "语句一：{0}\n语句二：{1}\n由语句一可以推出语句二。",
        "语句一：{0}\n语句二：{1}\n语句二和语句一相互矛盾。",
    )
    return [text.format(doc["sentence1"], doc["sentence2"]) for text in texts]


def hellaswag(doc: dict) -> list[str]:
    """Return the context, headed by its activity, with each ending; WikiHow's marks are taken out."""
    start = f"{doc['ctx_a']} {doc['ctx_b'].capitalize()}".strip()
    texts = [f"{doc['activity_label']}: {start} {ending}" for ending in doc["endings"]]
    return [" ".join(re.sub(r"\[[^\]]*\]", "", text.replace(" [title]", ". ")).split()) for text in texts]


def wsc_p(doc: dict) -> list[str]:
    """Return no, yes: whether the pronoun stands for the noun."""
    start = f'{doc["text"]}\nHere "{doc["span2_text"]}"'
    return [f'{start} does not refer to "{doc["span1_text"]}".', f'{start} refers to "{doc["span1_text"]}".']


def wsc_g(doc: dict) -> str:
    """Return the question whether the pronoun stands for the noun."""
    question = f'In this text, does "{doc["span2_text"]}" refer to "{doc["span1_text"]}"?'
    return f"{doc['text']}\n{question}\nA. Yes\nB. No\nAnswer with A or B.\nAnswer:"


def commonsense_qa(doc: dict) -> list[str]:
    """Return the texts of the choices."""
    return [f"Question: {doc['question']}\nAnswer: {text}" for text in doc["choices"]["text"]]


def race(doc: dict) -> list[str]:
    """Return the article, then the statement that the option completes, or question and option."""
    if "_" in doc["question"]:
        statements = [re.sub(r"\s*_+", f" {option}", doc["question"], count=1).strip() for option in doc["options"]]
    else:
        statements = [f"Question: {doc['question']}\nAnswer: {option}" for option in doc["options"]]
    return [f"Article: {doc['article']}\n{statement}" for statement in statements]


def c3(doc: dict) -> list[str]:
    """Return the texts of the choices."""
    return [f"文章：{''.join(doc['context'])}\n问题：{doc['question']}\n答案：{choice}" for choice in doc["choice"]]


def chid_blanks(rows: datasets.Dataset) -> datasets.Dataset:
    """Return one row per blank, the first `CHID_ITEMS`: its passage, the ten idioms, the right one's letter."""
    blanks = []
    for row in rows:
        answers = row["answers"]
        for tag, candidate in zip(answers["text"], answers["candidate_id"], strict=True):
            passage = next(text for text in row["content"] if tag in text)
            # the passage's other blanks are shown as dashes
            passage = re.sub(r"#idiom\d+#", "——", passage.replace(tag, "____"))
            answer = IDIOM_LETTERS[candidate]
            blanks.append({"passage": passage, "candidates": row["candidates"], "answer": answer})
            if len(blanks) == CHID_ITEMS:
                return datasets.Dataset.from_list(blanks)
    return datasets.Dataset.from_list(blanks)


def chid(doc: dict) -> str:
    """Return the question."""
    options = "\n".join(f"{letter}. {idiom}" for letter, idiom in zip(IDIOM_LETTERS, doc["candidates"], strict=False))
    return f"{doc['passage']}\n请从下列成语中选出最适合填入横线处的一个，只回答选项字母。\n{options}\n答案："


def first_thousand(rows: datasets.Dataset) -> datasets.Dataset:
    """Return the first thousand rows."""
    return rows.select(range(min(XSUM_ITEMS, len(rows))))


# What was generated: texts to scores.


def first_letter(text: str) -> str:
    """Return the first capital A to J that is no part of a word, or ''."""
    match = re.search(r"(?<![A-Za-z])[A-J](?![A-Za-z])", text)
    return match[0] if match else ""


def right_letter(doc: dict, results: list[str]) -> dict[str, float]:
    """Score whether the answer's first letter is the right one."""
    answer = doc["answer"] if "answer" in doc else "BA"[doc["label"]]
    return {"score": float(first_letter(results[0]) == answer)}


@cache
def _scorer():
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1"])


def rouge(doc: dict, results: list[str]) -> dict[str, float]:
    """Compute ROUGE-1 F of the first generated line that is not empty."""
    line = next((line.strip() for line in results[0].splitlines() if line.strip()), "")
    return {"score": _scorer().score(doc["summary"], line)["rouge1"].fmeasure}
