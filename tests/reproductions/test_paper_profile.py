"""Every target of the paper profile, rehearsed without a hub: tiny models of every architecture, a few rows of every dataset.

Of all recipes one of every kind is carried out (what differs is more than a number) on every architecture that needs it, and
every benchmark is measured once; then every target is shown and drawn from what was measured.
"""

import gzip
import json
from contextlib import contextmanager
from dataclasses import replace

import datasets
import pytest
import torch
from hub_mirror import LACO_TASKS, QUESTIONS, TASKS, write_mmlus, write_rows, write_task
from own_formats import write as write_own
from safetensors.torch import load_file
from tools import measure_missing
from transformers import AutoModelForCausalLM

from common.calibration import corpora
from common.evaluation import generation, harness, human_eval, mmlu
from common.evaluation.multiple_choice import SharedContextLM
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.models import loading
from common.models.files import hub
from common.records import results
from common.records.results import Store
from common.utils.errors import UserError
from figures import style
from papers.reassessing import gradients
from reproductions.engine import execute, fetch
from reproductions.laco import recipes as laco
from reproductions.measurements import magnitudes, reassessing, statistics, theory
from reproductions.prunecomp import recipes as prunecomp
from reproductions.reassessing import recipes as reassessed
from reproductions.render import show, tables
from reproductions.spec import registry, shape_recipes, shared_recipes, subjects

LIMIT = 2
SUBJECT = replace(subjects.PAPER, dtype="bfloat16")
PICKLED = "vicuna-7b-v1.5"
WORDS = "the layers of a model {i} are removed and the stream of the model is scaled"
SUBJECTS = ("anatomy", "virology")
ITEM = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    "entry_point": "double",
}


def _openbookqa(i):
    choices = {"text": ["a layer", "a model", "the stream", "one"], "label": list("ABCD")}
    return {"id": str(i), "question_stem": f"cut {i} is", "choices": choices, "answerKey": "ABCD"[i % 4]}


def _write_tasks(root):
    for task in TASKS:
        write_task(root, task, QUESTIONS)
    for split in ("train", "test"):
        write_rows(root, "allenai/openbookqa", "main", split, [_openbookqa(i) for i in range(QUESTIONS)])
    for hub_id, config, split, rows in LACO_TASKS.values():
        if rows:
            write_rows(root, hub_id, config, split, rows)
    solved = [{"question": f"what is {i} plus 1?", "answer": f"It is more.\n#### {i + 1}"} for i in range(6)]
    for split in ("train", "test"):
        write_rows(root, "openai/gsm8k", "main", split, solved)
    write_rows(root, "openai/openai_humaneval", None, "test", [ITEM, ITEM])
    write_mmlus(root, dict.fromkeys(SUBJECTS, 5))


def _write_corpora(root):
    lines = [WORDS.format(i=i) for i in range(200)]
    for split in ("train", "validation", "test"):
        texts = [{"text": f" {line} . \n"} for line in lines[: 20 if split == "validation" else None]]
        write_rows(root, "Salesforce/wikitext", "wikitext-2-raw-v1", split, texts)
        sentences = [{"sentence": line} for line in lines]
        write_rows(root, "ptb-text-only/ptb_text_only", f"penn_treebank/{split}", split, sentences)
    chinese = [{"text": f"模型的第{i}层被删除了并且被缩放。"} for i in range(60)]
    write_rows(root, "wikimedia/wikipedia", "20231101.zh", "train", chinese)
    alpaca = [{"instruction": f"Remove layer {i}.", "input": "", "output": f"the layer {i} is gone"} for i in range(8)]
    write_rows(root, "yahma/alpaca-cleaned", None, "train", alpaca)
    files = {
        "bookcorpus": [{"text": " ".join(lines[i : i + 20])} for i in range(60)],
        "wikipedia-en": [{"text": WORDS.format(i=i).capitalize() + "."} for i in range(30)],
        "ptb-validation": [{"sentence": line} for line in lines],
        "c4-train": [{"text": " ".join(lines)} for _ in range(12)],
        "c4-validation": [{"text": " ".join(lines)} for _ in range(4)],
    }
    for name, rows in files.items():
        corpus = corpora.get(name)
        path = root / "datasets" / corpus.hub_id / corpus.data_file
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gz":
            with gzip.open(path, "wt") as out:
                out.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            datasets.Dataset.from_list(rows).to_parquet(path)


def _write_model(root, name, tokenizer):
    """As many layers as the paper's model has, of its architecture and in its format; all else as small as can be."""
    spec = loading.get(name)
    folder = root / "models" / spec.hub_id
    if own := {"baichuan": "baichuan2", "chatglm": "chatglm2"}.get(spec.facts["model_type"]):
        write_own(folder, own, layers=spec.layers)
        return
    config = loading.model_config(name)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2}
    for key, value in (small | {"vocab_size": 320, "head_dim": 16, "max_position_embeddings": 4096}).items():
        if hasattr(config, key):
            setattr(config, key, value)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 0
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _pickle_weights(root, name):
    """The model as its repository has it: with pickled weights only."""
    folder = root / "models" / loading.get(name).hub_id
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory, tiny_tokenizer):
    """The hub, and everything that takes its size from the paper, small."""
    root = tmp_path_factory.mktemp("hub")
    _write_tasks(root)
    _write_corpora(root)
    for name in {recipe.model for _, recipe, _ in work()}:
        _write_model(root, name, tiny_tokenizer)
    _pickle_weights(root, PICKLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERLAB_HUB", str(root))
        patch.setenv("LAYERLAB_WORK", str(root / "work"))
        patch.setenv("LAYERLAB_CACHE", str(root / "converted"))
        patch.setenv(human_eval.VARIABLE, "1")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", root / "cache")
        patch.setattr(hub, "unreachable_because", lambda *_: pytest.fail("the hub was probed"))
        patch.setattr(harness, "members", lambda group: [f"{group}_{subject}" for subject in SUBJECTS])
        _shorten(patch)
        with pytest.raises(UserError, match="--convert-weights"):
            loading.resolve(PICKLED)
        loading.resolve(PICKLED, convert_weights=True)  # from here on it is found without asking
        yield root


def _shorten(patch):
    """Whatever takes its size from the papers takes a small one."""
    categories = dict.fromkeys(("stem", "humanities", "social", "other"), SUBJECTS)
    few = replace(mmlu.get("hendrycks"), categories=categories, regrouped={})
    patch.setattr(mmlu, "get", lambda name: few)
    for entry, length, count in (
        (shared_recipes.CALIBRATION, 48, 2),
        (shared_recipes.SLEB_LINES, 16, 2),
        (prunecomp.CROPS, 32, 2),
        (prunecomp.CODE_LINES, 32, 8),
        (prunecomp.CODE_TAYLOR, 32, 2),
    ):
        patch.setitem(entry, "paper", {**entry["paper"], "length": length, "count": count})
    patch.setattr(shared_recipes.sentences, "__defaults__", (2,))
    for name in ("linearpatch-wikitext2", "linearpatch-c4", "linearpatch-ptb"):
        patch.setitem(PROTOCOLS, name, replace(PROTOCOLS[name], window=64))
    patch.setitem(statistics.TEXT, "paper", (statistics.TEXT["paper"][0], 256))
    quick = {"learning_rate": 1e-5, "max_steps": 1, "batch": 2, "micro_batch": 2, "targets": ["q_proj"]}
    patch.setitem(reassessed.SETTINGS, "paper", quick)
    patch.setitem(reassessed.DATA, "paper", {"source": "alpaca-cleaned", "held_out": 4})
    patch.setitem(laco.TRAINING, "paper", {**laco.TRAINING["paper"], "tokens": 64, "length": 8})
    patch.setitem(laco.TRAINED_WITH, "paper", {**laco.TRAINED_WITH["paper"], "batch": 4, "micro_batch": 2})
    for model, (texts, data) in laco.CHINESE.items():
        patch.setitem(laco.CHINESE, model, (texts, {**data, "tokens": 64}))
    # alike as random layers are, most would be merged
    patch.setitem(laco.SETTINGS["llama-2-7b"], laco.MAIN["llama-2-7b"], (4, 1.0))
    patch.setattr(magnitudes, "WIDE", 16)
    patch.setattr(magnitudes, "MOST_CHANNELS", 16)
    patch.setattr(magnitudes, "FEW_INTERFACES", 2)
    patch.setattr(reassessing, "SAMPLE_COUNTS", (1, 2))
    patch.setattr(theory, "SEEDS", 1)
    patch.setitem(gradients.layer_norms.__kwdefaults__, "iterations", 1)
    complete, generate = generation.complete, SharedContextLM.generate_until
    patch.setattr(generation, "complete", lambda model, tokenizer, prompts, _: complete(model, tokenizer, prompts, 4))

    def generate_until(lm, requests, **options):
        for request in requests:
            request.args[1]["max_gen_toks"] = 4
        return generate(lm, requests, **options)

    patch.setattr(SharedContextLM, "generate_until", generate_until)


GREEDY = {"sleb": 2, "finercut": 2}  # searches whose steps run the model once per layer: how many layers are removed
STEPS = ("selection", "repair", "training", "calibration")
NUMBERS = ("count", "layers", "ratio", "seed", "samples", "learning_rate", "T", "C", "H", "last", "schedule")


def _kinds(part, path):
    """Every setting of a recipe's part, but for the numbers, which change nothing about which code runs."""
    if isinstance(part, dict):
        return {kind for key, value in part.items() if key not in NUMBERS for kind in _kinds(value, (*path, key))}
    return {(*path, str(part))}


def work():
    """(target, recipe, benchmarks) of every row of every target on the paper's models."""
    for target, table in registry.targets().items():
        columns = [c for c in table.columns_for(SUBJECT) if c.benchmark and not c.shape_only]
        benchmarks = tuple(dict.fromkeys(c.benchmark for c in columns))
        for row in table.rows(SUBJECT, LIMIT):
            if row.recipe is not None and row.recipe.weights != shape_recipes.SHAPE_ONLY:
                yield target, row.recipe, benchmarks


def sample(paper):
    """(target, recipe, benchmarks): every setting of every step, every architecture pruned, every benchmark once."""
    seen = set()
    for target, recipe, benchmarks in work():
        if registry.get(target).paper != paper or "reprune" in (recipe.training or {}):
            continue  # pruning again is a long search, tested with LaCo's tables
        how = (recipe.fidelity, (recipe.selection or {}).get("method"))
        kinds = {kind for step in STEPS for kind in _kinds(getattr(recipe, step), (*how, step))}
        kinds |= {loading.get(recipe.model).facts["model_type"]} if recipe.selection else set()
        chosen = [name for name in benchmarks if name not in seen] or ([benchmarks[0]] if kinds - seen else [])
        seen |= kinds | set(chosen)
        if chosen:
            yield target, _shortened(recipe), chosen


def _shortened(recipe):
    """The recipe, with a few layers to go where each costs a run of the model per layer that might."""
    selection = recipe.selection or {}
    few = GREEDY.get(selection.get("method"))
    return recipe if few is None else replace(recipe, selection={**selection, "count": few})


@contextmanager
def reading(really: bool):
    """The datasets and tasks that are read meanwhile; not really: everything is there, and nothing is opened."""
    read = set()
    opened, loaded = corpora.open_dataset, harness.load_tasks
    row = dict.fromkeys(("text", "sentence", "instruction", "input", "output"), "a")

    def open_dataset(*names, **options):
        read.add(names)
        return opened(*names, **options) if really else datasets.Dataset.from_list([row] * 3)

    def load_tasks(tasks):
        read.update(tasks)
        return loaded(tasks) if really else {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "open_dataset", open_dataset)
        patch.setattr(harness, "load_tasks", load_tasks)
        corpora._texts.cache_clear()
        yield read
        corpora._texts.cache_clear()


def _table(recipe, benchmarks):
    row = registry.Row(recipe.model, recipe.model, "", "rehearsed", recipe)
    columns = [registry.Column(name, name, "") for name in benchmarks]
    return registry.Table("rehearsal", "linearpatch", "", "", lambda *_: [row], lambda _: columns)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("paper", registry.PAPERS)
def test_every_kind_of_cell_is_measured_fetched_and_shown(mirrored, paper, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "DRAWN", tmp_path / "pictures")
    monkeypatch.setattr(results, "environment", dict)  # asks git each time
    store, problems, fetched = Store(tmp_path / "records", None), [], {}
    for target, recipe, benchmarks in sample(paper):
        with reading(really=True) as read:
            measure_missing([_table(recipe, benchmarks)], store, SUBJECT, execute)
        for name in benchmarks:
            record = store.get(recipe, name)
            if record.status != "ok" and not record.reason.startswith("GPTQ needs "):
                problems.append(f"{target}, {name} of {recipe}: {record.reason}")
        if target not in fetched:
            with reading(really=False) as fetched[target]:
                assert list(fetch.fetch(registry.get(target), SUBJECT))
        problems += [f"{target} reads {what}, which is not fetched" for what in read - fetched[target]]
    for target, table in registry.targets().items():
        if table.paper == paper:
            built = show.build(table, store, SUBJECT, limit=LIMIT)
            assert all(tables.render(built, form) for form in tables.FORMATS), target
            if table.draw:
                show.drawn(table, store, SUBJECT, limit=LIMIT)
    assert not problems, "\n".join(problems)
