"""Benchmarks by name: groups of subjects, MMLU's protocols, generation, and the columns that ask for them."""

import pytest
import torch
from hub_mirror import write_mmlus, write_rows
from stored_records import put

from common.evaluation import generation, harness, mmlu, scores
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.models.files import hub
from common.records.results import Store
from common.utils.errors import UserError
from reproductions import measurements
from reproductions.engine import execute, fetch
from reproductions.reassessing.columns import TASKS
from reproductions.spec import columns, registry, reported

SUBJECTS = {"anatomy": 2, "virology": 5}


@pytest.fixture
def subjects(mirror, tmp_path, monkeypatch):
    """Two subjects of MMLU and CMMLU, with the hub's columns and different numbers of questions."""
    write_mmlus(tmp_path / "hub", SUBJECTS)
    monkeypatch.setattr(harness, "members", lambda group: [f"{group}_{subject}" for subject in SUBJECTS])


@pytest.mark.parametrize("group", ["mmlu", "cmmlu"])
def test_groups_are_weighted_by_size_for_reassessing_and_alike_for_laco(prepared, subjects, group):
    values, errors, details, outcomes = execute.benchmark(prepared, group)
    assert {metric: len(right) for metric, right in outcomes.items()} == dict.fromkeys(values, sum(SUBJECTS.values()))
    assert {metric: right.mean() for metric, right in outcomes.items()} == pytest.approx(values)
    cells = details["subjects"]
    assert [scores["n"] for scores in cells.values()] == list(SUBJECTS.values())
    expected = sum(scores["acc"] * scores["n"] for scores in cells.values()) / sum(SUBJECTS.values())
    assert values["acc"] == pytest.approx(expected) and errors["acc"] is not None
    assert ("acc_norm" in values) == (group == "cmmlu")
    values, errors, details = execute.benchmark(prepared, f"laco_{group}")
    assert values == {"score": pytest.approx(sum(s["acc"] for s in details["subjects"].values()) / 2)}
    direct = harness.evaluate(prepared.model, prepared.tokenizer, [f"{group}_anatomy"], num_fewshot=5)
    assert details["subjects"][f"{group}_anatomy"]["acc"] == direct[f"{group}_anatomy"]["acc"]
    assert direct["raw"]["n-shot"][f"{group}_anatomy"] == 5


@pytest.mark.parametrize("profile", ["paper", "standin"])
def test_every_column_of_every_table_names_a_benchmark_that_exists(profile):
    registered = measurements.benchmarks()
    needed = {column for table in registry.targets().values() for column in table.columns(profile) if column.benchmark}
    for column in needed:
        base, _, argument = column.benchmark.partition("@")
        if column.weight_free:
            continue
        if base == "mmlu" and argument:
            protocol = mmlu.get(argument)
            assert column.key in {*protocol.categories, "weighted"}
        elif base == "perplexity":
            assert argument in PROTOCOLS
        elif base == "generations":
            assert argument in generation.PROMPT_SETS
        elif base not in registered:
            assert harness._folder(base) or base in harness._toy_configs([base]), column
    assert len(columns.laco("paper")) == 14


def test_normalised_accuracy_is_asked_of_tasks_that_have_it():
    names = [column for column in registry.get("tableH-reassessing").columns("paper") if column.benchmark]
    plain = {column.benchmark for column in names if column.key == "acc"}
    assert plain == {"mmlu", "winogrande"}


@pytest.mark.parametrize("profile", ["paper", "standin"])
def test_laco_averages_cover_every_score_once(profile):
    labels = [column.label for column in columns.laco(profile)]
    average, retained, *groups = columns.laco_averages(profile)
    assert list(average.of) == list(retained.of) == labels == [label for group in groups for label in group.of]
    assert [group.label for group in groups] == ["Reas.", "Lang.", "Know.", "Exam.", "Unde."]


@pytest.mark.parametrize("model", ["LLaMA-2-7B", "LLaMA-2-13B", "Baichuan2-7B", "Baichuan2-13B"])
def test_lacos_averages_follow_from_its_scores(model):
    """Table 2 from the rows of Table 1, as printed."""
    printed = {}
    for table in ("1", "2"):
        for (label, _, method, column), number in reported.cells("laco", table).items():
            if label == model:
                printed.setdefault((table, method), {})[column] = number.value
    categories = columns.LACO_CATEGORIES["paper"]
    labels = [label for members in categories.values() for label in members]
    dense = {label: printed["1", "Dense*"][label] for label in labels}
    for method in ("Dense*", "LLMPru.", "SliceGPT", "LaCo"):
        cells = {label: printed["1", method][label] for label in labels}
        expected = printed["2", method]
        assert scores.average(cells) == pytest.approx(expected["Avg."], abs=0.0101)
        assert scores.retained_performance(cells, dense) == pytest.approx(expected["Per."], abs=0.0101)
        for category, members in categories.items():
            average = scores.average({label: cells[label] for label in members})
            assert average == pytest.approx(expected[category], abs=0.0101)


def test_generations_reach_the_details(prepared):
    prepared.model.config.max_position_embeddings = 256
    values, errors, details = execute.benchmark(prepared, "generations@reassessing-q")
    assert {f"text-{n}" for n in (1, 2, 3)} < details.keys() and len(details["prompts"]) == 3
    assert all(isinstance(value, float) for value in values.values())


@pytest.mark.slow
def test_a_broken_model_has_a_perplexity_that_diverged(prepared, tmp_path):
    with torch.no_grad():
        prepared.model.lm_head.weight.mul_(1e5)
    values, errors, details, _ = execute.benchmark(prepared, "perplexity@standin-numerical-thin")
    assert values["nll"] > 700 and values["perplexity"] == float("inf")
    store, recipe = Store(tmp_path, None), prepared.recipe
    put(store, recipe, "perplexity", values, errors, details=details)
    assert '"perplexity": "Infinity"' in store.path(recipe, "perplexity").read_text()
    assert store.get(recipe, "perplexity").values == values


def test_fetch_knows_what_each_benchmark_reads(subjects, tmp_path, monkeypatch):
    monkeypatch.setattr(mmlu, "MMLU", {name: dict.fromkeys(SUBJECTS, 1) for name in mmlu.MMLU})
    loaded = []
    monkeypatch.setattr(harness, "load_tasks", lambda tasks: loaded.extend(tasks))
    names = ("mmlu@hendrycks", "laco_cmmlu", "mmlu", "laco_boolq", "removed", "parameters", "generations@laco-xsum")
    for name in names:
        fetch._benchmark(name)
    subjects = [f"{group}_{subject}" for group in ("cmmlu", "mmlu") for subject in SUBJECTS]
    assert loaded == [*subjects, "laco_boolq"]
    write_rows(tmp_path / "hub", "Salesforce/wikitext", "wikitext-2-raw-v1", "test", [{"text": "a model"}])
    fetch._benchmark("perplexity@reassessing-wikitext2")
    monkeypatch.delenv("LAYERLAB_HUB")
    monkeypatch.setattr(hub, "unreachable_because", lambda *_: "no network")
    with pytest.raises(UserError, match="could not fetch dataset .*: no network"):
        fetch._benchmark("mmlu@hendrycks")


def test_reassessings_suite_runs_from_a_mirror(subjects, tmp_path, tiny_llama, tiny_tokenizer):
    choices = {"text": ["a layer", "a model", "the stream", "one"], "label": list("ABCD")}
    question = {"question_stem": "cut is", "choices": choices}
    rows = [question | {"id": str(i), "answerKey": "ABCD"[i]} for i in range(4)]
    for split in ("train", "test"):
        write_rows(tmp_path / "hub", "allenai/openbookqa", "main", split, rows)
    results = harness.evaluate(tiny_llama, tiny_tokenizer, list(TASKS.values()))
    sizes = {task: results[task]["n"] for task in TASKS.values()}
    assert sizes["mmlu"] == sizes["cmmlu"] == sum(SUBJECTS.values()) and sizes["openbookqa"] == 4
    assert all(0 <= results[task]["acc"] <= 1 for task in TASKS.values())
    assert results["openbookqa"]["acc_norm"] is not None and results["mmlu"]["acc_norm"] is None
