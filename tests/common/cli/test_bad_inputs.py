"""Whatever is wrong with a command line, its texts or its model is one line, said before any weights are read."""

import json
import os
import shutil

import own_formats
import pytest
import torch
from safetensors.torch import save_file
from tools import edited_config, main, method_of
from transformers import AutoModelForCausalLM

from common.models import checkpoint, loading
from common.training.finetuning import memory
from papers.linearpatch import tool as linearpatch_tool
from tests.tools import PARAGRAPH, TOOLS, paragraphs


@pytest.fixture(scope="module")
def files(tmp_path_factory, write_checkpoint, make_tiny, tiny_tokenizer):
    """A folder with a good model and text, and everything that may be wrong with either."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "text.txt").write_text(paragraphs())
    (folder / "short.txt").write_text(PARAGRAPH)
    (folder / "empty.txt").write_text("  \n")
    (folder / "one-line.txt").write_text(" ".join(f"{number} {PARAGRAPH.strip()}" for number in range(120)))
    (folder / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    (folder / "notes").mkdir()
    (folder / "notes" / "thesis.tex").write_text("years of work")
    rows = [{"instruction": f"Count to {n}.", "input": "", "output": "1 2 3"} for n in range(2, 22)]
    data = {
        "good": "\n".join(map(json.dumps, rows)),
        "column": '{"instruction": "a", "output": "b"}\n' * 2,
        "empty": '{"instruction": "a", "input": "", "output": ""}\n' * 2,
        "number": '{"instruction": "a", "input": "", "output": 3}\n' * 2,
        "one": '{"instruction": "a", "input": "", "output": "b"}',
        "words": "not json",
        "lists": "[1, 2]\n[3, 4]",
        "nothing": "",
        "cut-off": '{"text": "a"}\n{"text": "b"}\n{"text": "cut',
        "long": "\n".join(json.dumps(row | {"instruction": "count " * 400}) for row in rows),
    }
    for name, content in data.items():
        (folder / f"{name}.jsonl").write_text(content)
    good = write_checkpoint(folder / "good")
    for name, (family, damage) in FAMILIES.items():
        damage(write_checkpoint(folder / name, family))
    for name, (form, changes) in OWN_FORMATS.items():
        own_formats.write(folder / name, form, **changes)
    cut_short(folder / "baichuan-cut-short")
    (folder / "loop").symlink_to("loop")
    for name, damage in DAMAGES.items():
        shutil.copytree(good, folder / name)
        damage(folder / name)
    write_checkpoint(folder / "many-tokens", model=fewer_rows(make_tiny))
    checkpoint.save(make_tiny(), tiny_tokenizer, folder / "ours")
    shutil.copytree(folder / "ours", folder / "ours-and-more")
    (folder / "ours-and-more" / "thesis.tex").write_text("years of work")
    return folder


def fewer_rows(make_tiny):
    model = make_tiny()
    model.resize_token_embeddings(200)
    return model


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def adapter_alone(folder):
    (folder / "config.json").rename(folder / "adapter_config.json")


def pickled(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def no_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()


def cut_short(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def with_patches(folder):
    (folder / "patches.json").write_text(json.dumps({"format": 1, "patches": []}))
    save_file({"0.weight": torch.ones(2)}, folder / "patches.safetensors")


def in_parts(*names):
    """A checkpoint in parts without these files."""

    def damage(folder):
        AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="100KB")
        for name in ("model.safetensors", *names):
            for file in folder.glob(name):
                file.unlink()

    return damage


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 12345\n"
DAMAGES = {
    "pointer": write("model.safetensors", LFS_POINTER),
    "tokenizer-pointer": write("tokenizer.json", LFS_POINTER),
    "more-layers": edited_config(num_hidden_layers=8),
    "no-index": in_parts("model.safetensors.index.json"),
    "no-part": in_parts("model-00002-of-*.safetensors"),
    "patched": with_patches,
    "no-config": lambda folder: (folder / "config.json").unlink(),
    "torn-config": write("config.json", b"{"),
    "list-config": write("config.json", b"[1]"),
    "binary-config": write("config.json", b"\xff\xfe\x00"),
    "other-type": edited_config(model_type="other"),
    "gpt2": edited_config(model_type="gpt2"),
    "bloom": edited_config(model_type="bloom"),
    "falcon": write("config.json", b'{"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4}'),
    "gemma": edited_config(model_type="gemma2"),
    "no-type": edited_config(model_type=None),
    "words-for-layers": edited_config(num_hidden_layers="many"),
    "two-layers": edited_config(num_hidden_layers=2),
    "negative-layers": edited_config(num_hidden_layers=-4),
    "quantised": edited_config(quantization_config={"quant_method": "gptq", "bits": 4}),
    "quantised-elsewhere": write("hf_quant_config.json", b'{"quantization": {"quant_algo": "FP8"}}'),
    "adapter": write("adapter_config.json", b"{}"),
    "adapter-alone": adapter_alone,
    "infinity": edited_config(model_type="falcon_h1", time_step_limit=[0.0, {"__float__": "Infinity"}]),
    "pad-token": edited_config(pad_token_id=320),
    "zero-epsilon": edited_config(rms_norm_eps=0),
    "unknown-rope": edited_config(rope_parameters=None, rope_scaling={"type": "su", "factor": 2.0}),
    "other-vocabulary": edited_config(vocab_size=328),
    "other-width": edited_config(intermediate_size=104),
    "generation": write("generation_config.json", b'{"max_new_tokens": 0}'),
    "no-weights": lambda folder: (folder / "model.safetensors").unlink(),
    "pickled": pickled,
    "cut-short": cut_short,
    "empty-weights": write("model.safetensors", b""),
    "no-header": write("model.safetensors", b"\xff" * 64),
    "no-tokenizer": no_tokenizer,
    "no-vocabulary": lambda folder: (folder / "tokenizer.json").unlink(),
    "torn-tokenizer": write("tokenizer.json", b'{"model": 3'),
}
FAMILIES = {
    "gemma3-cut-short": ("gemma3_text", cut_short),
    "deepseek-wider": ("deepseek_v3", edited_config(moe_intermediate_size=40)),
    "gpt-oss-cut-short": ("gpt_oss", cut_short),
    "glm-one-layer": ("glm", edited_config(num_hidden_layers=1)),
    "hybrid": ("qwen3_5_text", lambda folder: None),
}
OWN_FORMATS = {
    "baichuan-alibi": ("baichuan2", {"max_position_embeddings": None}),
    "baichuan-quantised": ("baichuan2", {"quantization_config": {"bits": 4}}),
    "baichuan-cut-short": ("baichuan2", {}),
    "chatglm-longer": ("chatglm2", {"rope_ratio": 50}),
}
# The options, and what the line must name. {folder} is the folder of `files`. Refused before torch is loaded:
EARLY = [
    (["--remove", "0"], "--remove 0: use 1 or more"),
    (["--remove", "-2"], "--remove -2: use 1 or more"),
    (["--remove", "5"], "cannot remove 5 of 6 layers; choose 1..4"),
    (["--remove", "999999999999"], "cannot remove 999999999999 of 6 layers"),
    (["--remove", "two"], "--remove 'two' is not a whole number. Write digits alone"),
    (["--remove", ""], "--remove has an empty value. Give it a value, or leave it out"),
    (["--remove", "1.5"], "--remove '1.5' is not a whole number"),
    (["--remove", "nan"], "--remove 'nan' is not a whole number"),
    (["--remove"], "--remove needs a value"),
    (["--remove", "2", "--layers", "2-3"], "--remove and --layers contradict each other"),
    (["--remove", "2", "--sweep", "1-3"], "--remove and --sweep contradict each other"),
    ([], "nothing says which layers to remove; give one of --remove, --layers, --sweep"),
    (["--layers", ""], "--layers has an empty value"),
    (["--layers="], "--layers has an empty value"),
    (["--layers", "two"], "'two' is neither a number nor a range; write 21-28,30"),
    (["--layers", "2,"], "'' is neither a number nor a range"),
    (["--layers=-1"], "'-1' is neither a number nor a range"),
    (["--layers", "2-"], "'2-' is neither a number nor a range"),
    (["--layers", "4-2"], "runs backwards; write 2-4"),
    (["--layers", "2,3,2"], "names 2 more than once"),
    (["--layers", "2-4,3"], "names 3 more than once"),
    (["--layers", "6"], "cannot remove layers [6]: the model has layers 0 to 5"),
    (["--layers", "3-99"], "cannot remove layers [6, 7, 8, 9, 10 and 89 more]: the model has layers 0 to 5"),
    (["--layers", "123456"], "neither a number nor a range"),
    (["--layers", "²"], "neither a number nor a range"),
    (["--sweep", "some"], "'some' is neither a number nor a range"),
    (["--target-ratio", "0"], "--target-ratio 0.0: a share is written 25% or 0.25; use 0.001 to 0.99"),
    (["--target-ratio", "some"], "--target-ratio 'some' is not a share"),
    (["--target-ratio", ""], "--target-ratio has an empty value"),
    (["--target-ratio", "25"], "'25' is not a share. Write it as in --target-ratio 10%"),
    (["--target-ratio", "20%", "--remove", "2"], "--remove and --target-ratio contradict each other"),
    (["--max-perplexity-increase", "10"], "'10' is not a share. Write it as in --max-perplexity-increase 10%"),
    (["--max-perplexity-increase", "inf"], "--max-perplexity-increase inf: a share is written 10% or 0.1; use 0 to 10"),
    (["--max-perplexity-increase=-1%"], "--max-perplexity-increase -0.01: a share is written 10% or 0.1; use 0 to 10"),
    (["--max-perplexity-increase", "nan"], "--max-perplexity-increase nan: a share is written"),
    (
        ["--max-perplexity-increase", "5%", "--sweep", "1-3"],
        "--sweep and --max-perplexity-increase contradict each other",
    ),
    (["--sweep", "1-3", "--plan"], "--sweep and --plan contradict each other"),
    (["--sweep", "1-3", "--no-evaluation"], "--sweep measures perplexity"),
    (["--sweep", "1-2", "--push-to-hub", "me/it"], "--sweep writes none. Leave one of the two out"),
    (["--sweep", "1-2", "--tasks", "piqa"], "--sweep, which measures perplexity, leaves --tasks and --limit out"),
    (["--remove", "2", "--samples", "many"], "--samples 'many' is not a whole number"),
    (["--remove", "2", "--device", ""], "--device has an empty value"),
    (["--remove", "2", "--text", "nowhere.txt"], "cannot read the text nowhere.txt: No such file"),
    (["--remove", "2", "--model", "./missing"], "cannot load ./missing: no such directory"),
    (
        ["--remove", "2", "--model", "llama2-7b"],
        "did you mean 'llama-2-7b'? There is no directory llama2-7b here either",
    ),
    (["--remvoe", "2"], "there is no option --remvoe. Did you mean --remove?"),
    (["--remove", "29", "--model", "smollm2-135m"], "cannot remove 29 of 30 layers; choose 1..28"),
    (["--layers", "30", "--model", "smollm2-135m"], "the model has layers 0 to 29"),
]
# As the first ones, but found by the tool itself.
LATER = [
    (["--layers", "1-5"], "cannot remove 5 of 6 layers"),
    (["--sweep", "0-2"], "cannot remove 0 of 6 layers"),
    (["--sweep", "1-5"], "--sweep 1-5: the model has 6 layers; choose from 1-4"),
    (["--target-ratio", "97%"], "4 of 6 layers can be removed, which hold"),
]
# In a command that removes two layers.
COMMON = [
    (["--samples", "0"], "--samples 0: use 1 to 100,000"),
    (["--samples", "-1"], "--samples -1"),
    (["--samples", "1000000000"], "--samples 1000000000: use 1 to 100,000"),
    (["--length", "1"], "--length 1: a sequence needs at least 2 tokens; use 2 or more"),
    (["--length", "-5"], "--length -5"),
    (["--length", "100000"], "--length 100000 is more than the model's context of 4096 tokens"),
    (["--length", "4096", "--test", "{folder}/short.txt"], "the test text {folder}/short.txt"),
    (["--test-samples", "0"], "--test-samples 0"),
    (["--test-samples", "x"], "--test-samples 'x' is not a whole number"),
    (["--seed", "-1"], "--seed -1: use 0 to 4,294,967,295"),
    (["--seed", "99999999999999999999"], "--seed 99999999999999999999"),
    (["--limit", "1"], "--limit 1: 1 item leaves no standard error; use 2 or more"),
    (["--limit", "8"], "--limit has no effect without --tasks. Name tasks, or remove --limit"),
    (["--limit", "-3"], "--limit -3"),
    (["--tasks", "piqa arc_easy"], "'piqa arc_easy' is no task's name; separate names by commas"),
    (["--tasks", "../secrets"], "is no task's name"),
    (["--tasks", "piqa", "--no-evaluation"], "--no-evaluation leaves --tasks and --limit out"),
    (["--fidelity", ""], "--fidelity has an empty value"),
    (["--device", "gpu"], "device 'gpu' cannot be used here; try 'cpu'"),
    (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
    (["--device", "meta"], "device 'meta' cannot be used here"),
    (["--dtype", "int8"], "unknown dtype 'int8'"),
    (["--dtype", "fp16"], "unknown dtype 'fp16'; known: bfloat16, float16, float32"),
    (["--text", "{folder}"], "Is a directory"),
    (["--text", "{folder}/picture.txt"], "it is no UTF-8 text (byte 0)"),
    (["--text", "{folder}/empty.txt"], "empty.txt is empty"),
    (["--text", "wikitext3-train"], "unknown corpus 'wikitext3-train'; did you mean 'wikitext2-train'"),
    (["--text", "my-text"], ". There is no file my-text here either"),
    (["--model", "org/missing"], "(`hf download org/missing`), and name its directory in --model"),
    (["--text", "wikitext2-train+nowhere.txt"], "cannot read the text nowhere.txt: No such file"),
    (["--text", "wikitext2-train+"], "--text names nothing in wikitext2-train+; give a file"),
    (["--text", "a\0b.txt"], "cannot read the text a"),
    (["--text", "n" * 5000 + ".txt"], "File name too long"),
    (["--text", "two\nlines.txt"], "cannot read the text two lines.txt"),
    (["--test", "nowhere.txt"], "Name a UTF-8 file, or a corpus such as wikitext2-train"),
    (["--test", "{folder}/picture.txt"], "it is no UTF-8 text"),
    (["--test", "{folder}/empty.txt"], "empty.txt is empty"),
    (["--test", "{folder}/short.txt"], "do not fill one sequence of 128"),
    (["--test", ""], "--test has an empty value"),
    (["--text", " "], "--text names nothing"),
    (["--model", "~nobody-of-this-name/model"], "no such directory"),
    (["--model", "baichuan2-13b", "--remove", "2"], "its positions are ALiBi's"),
    (["--model", "{folder}/text.txt"], "it is a file; give the directory"),
    (["--model", "{folder}/notes"], "it has no config.json"),
    (["--model", "{folder}/adapter-alone"], "it holds an adapter (adapter_config.json), not a model. Merge it"),
    (["--model", "{folder}/infinity"], "architecture 'falcon_h1' is not supported"),
    (["--model", "{folder}/many-tokens"], "tokens up to 295, but the model's embedding has 200 rows"),
    (
        ["--model", "{folder}/pointer"],
        "model.safetensors: it is a pointer of Git LFS, not the file itself. Run `git lfs",
    ),
    (["--model", "{folder}/tokenizer-pointer"], "tokenizer.json: it is a pointer of Git LFS"),
    (
        ["--model", "{folder}/more-layers"],
        "config.json asks for 8 layers, and the files have no weights of layers 6, 7",
    ),
    (["--model", "{folder}/no-index"], "but model.safetensors.index.json, which says where each tensor is, is missing"),
    (["--model", "{folder}/no-part"], ".safetensors: there is no such file; save or download it again"),
    (["--model", "{folder}/no-config"], "it has no config.json"),
    (["--model", "{folder}/torn-config"], "config.json cannot be read"),
    (["--model", "{folder}/list-config"], "config.json cannot be read"),
    (["--model", "{folder}/binary-config"], "config.json cannot be read"),
    (["--model", "{folder}/other-type"], "architecture 'other' is not supported. docs/models.md lists those that are"),
    (["--model", "{folder}/no-type"], "architecture None is not supported"),
    (["--model", "{folder}/words-for-layers"], "{folder}/words-for-layers"),
    (["--model", "{folder}/quantised-elsewhere"], "the model is quantised (hf_quant_config.json lies beside it)"),
    (["--model", "{folder}/adapter"], "an adapter lies beside the model (adapter_config.json)"),
    (["--model", "{folder}/pad-token"], "pad_token_id 320 in config.json has no row, the embedding has 320"),
    (["--model", "{folder}/zero-epsilon"], "Field 'rms_norm_eps' expected float, got int"),
    (["--model", "{folder}/unknown-rope"], "no model can be built from its config.json (KeyError 'su')"),
    (["--model", "{folder}/other-vocabulary"], "is 320 x 64 in the files, but config.json asks for 328 x 64"),
    (["--model", "{folder}/other-width"], "is 96 x 64 in the files, but config.json asks for 104 x 64"),
    (["--model", "{folder}/generation"], "transformers does not accept its generation_config.json"),
    (["--text", "{folder}/cut-off.jsonl"], "line 3 is no JSON"),
    (["--model", "{folder}/two-layers"], "the model has 2 layers; pruning leaves two at least"),
    (["--model", "{folder}/negative-layers"], "layers"),
    (["--model", "{folder}/quantised"], "the model is quantised (config.json has a quantization_config)"),
    (["--model", "{folder}/no-weights"], "it has no safetensors weights"),
    (["--model", "{folder}/pickled"], "pickled ones are never loaded"),
    (["--model", "{folder}/cut-short"], "it ends too early"),
    (["--model", "{folder}/gpt2"], "architecture 'gpt2' is not supported (it has no list model.layers"),
    (["--model", "{folder}/bloom"], "architecture 'bloom' is not supported (it has no list model.layers"),
    (["--model", "{folder}/falcon"], "architecture 'falcon' is not supported (it has no list model.layers"),
    (["--model", "{folder}/gemma3-cut-short"], "it ends too early"),
    (["--model", "{folder}/gpt-oss-cut-short"], "it ends too early"),
    (["--model", "{folder}/deepseek-wider"], "but config.json asks for"),
    (["--model", "{folder}/glm-one-layer"], "the model has 1 layer; pruning leaves two at least"),
    (["--model", "{folder}/baichuan-alibi"], "its positions are ALiBi's"),
    (["--model", "{folder}/baichuan-quantised"], "the model is quantised"),
    (["--model", "{folder}/baichuan-cut-short"], "it ends too early"),
    (["--model", "{folder}/chatglm-longer"], "rope_ratio is 50"),
    (["--model", "{folder}/empty-weights"], "its header is cut off"),
    (["--model", "{folder}/no-header"], "its header is cut off"),
    (["--model", "{folder}/no-tokenizer"], "it has no tokenizer"),
    (
        ["--model", "{folder}/no-vocabulary"],
        "tokenizer_config.json is there, but no vocabulary, such as tokenizer.json",
    ),
    (["--model", "{folder}/torn-tokenizer"], "cannot load the tokenizer"),
    (["--out", "{folder}/text.txt"], "it is a file; move it away"),
    (["--out", "{folder}/text.txt/below"], "is no directory"),
    (["--out", "{folder}/notes", "--force"], "there is no .layer-pruning.json"),
    (
        ["--out", "{folder}/two-layers", "--force"],
        "a checkpoint that was not saved here (there is no .layer-pruning.json",
    ),
    (["--out", "{folder}/good", "--force"], "is the model itself"),
    (["--out", "{folder}/good/pruned"], "lies in the model's own directory"),
    (["--out", "{folder}/good/a/b"], "lies in the model's own directory"),
    (["--out", "{folder}/" + "x" * 245], "File name too long; choose another directory"),
    (["--out", "{folder}/ours"], "replace it with --force"),
    (["--out", "{folder}/ours-and-more", "--force"], "it holds thesis.tex, which was not saved with the checkpoint"),
    (["--push-to-hub", "a b"], "--push-to-hub 'a b' is no repository's name. Write USER/NAME"),
    (["--push-to-hub", "a/b/c"], "--push-to-hub 'a/b/c' is no repository's name"),
    (["--json=yes"], "--json takes no value. Leave 'yes' out"),
    (["--measure"], "--measure adds to --plan"),
    (["--faster"], "there is no option --faster."),
    (["2", "3"], "'2' is no option and belongs to none"),
    (["--windows", "4"], "--windows has a new name. Use --test-samples"),
    (["--test-sample", "4"], "there is no option --test-sample. Did you mean --test-samples"),
    (["--text"], "--text needs a value"),
    (["--out", "{folder}/loop"], "it is a link that leads back to itself"),
    (["--out", "{folder}/loop/below"], "it is a link that leads back to itself"),
]
KINDS = (["--fidelity", "exact"], "--fidelity does not know 'exact'. Use one of 'paper', 'code'")
OWN = {
    "refit": [
        (["--fidelity", "code"], "there is no option --fidelity"),
        (["--model", "{folder}/gemma"], "'gemma2' is not supported by Refit; supported: "),
        (["--cosine", "sine"], "does not know 'sine'. Use one of"),
        (["--following", "-1"], "--following -1: use 0 to 1,000"),
        (["--following", "few"], "--following 'few' is not a whole number"),
        (["--ridge", "0"], "--ridge 0.0: use 1e-12 to 1,000,000"),
        (["--ridge", "nan"], "--ridge nan: use 1e-12 to 1,000,000"),
        (["--held-out", "-1"], "--held-out -1: use 0 to 100,000"),
        (["--held-out", "4"], "--held-out 4 leaves none of the 4 samples"),
        (["--layers", "2", "--choose", "least-residual"], "Remove --choose and --cosine"),
        (["--layers", "2", "--cosine", "token"], "Remove --choose and --cosine"),
        (["--ridge", "0.1", "--held-out", "2"], "--held-out selects the ridge that --ridge sets"),
        (["--text", "{folder}/short.txt"], "--text {folder}/short.txt: the calibration text has"),
    ],
    "linearpatch": [
        KINDS,
        (["--variant", "X"], "does not know 'X'. Use one of"),
        (["--patch", "round"], "does not know 'round'. Use one of"),
        (["--estimator", "mean"], "does not know 'mean'. Use one of"),
        (["--cosine", "sine"], "does not know 'sine'. Use one of"),
        (
            ["--patch", "matrix", "--estimator", "elementwise"],
            "--patch matrix cannot be computed by --estimator elementwise",
        ),
        (["--layers", "2,3", "--variant", "S", "--cosine", "channel"], "--variant and --cosine would choose layers"),
        (["--distill", "8", "--stream"], "--distill trains with the whole model"),
        (["--sweep", "1-2", "--stream"], "ask for one"),
        (["--stream", "-1"], "--stream -1.0: use 0 to 100,000"),
        (["--stream", "--device", "auto"], "name one device"),
        (["--distill", "0"], "--distill 0: use 1 to 1,000,000"),
        (["--distill", "4", "--patch", "scalar"], "--distill does not train a patch of kind scalar"),
        (["--text", "{folder}/short.txt"], "--text {folder}/short.txt: the calibration text has"),
    ],
    "prunecomp": [
        KINDS,
        (["--metric", "best"], "does not know 'best'. Use one of"),
        (["--metric", "taylor+"], "cannot remove 2 layers: only 0 of 6 are not protected"),
        (["--metric", "mag+"], "cannot remove 2 layers: only 0 of 6 are not protected"),
        (["--metric", "mag+", "--layers", "2,3"], "--metric would choose layers, which --layers names"),
        (["--metric", "ppl", "--stream"], "--metric ppl needs the whole model"),
        (["--metric", "bi", "--one-shot=3"], "--one-shot takes no value. Leave '3' out"),
        (["--text", "{folder}/short.txt"], "--text {folder}/short.txt: the calibration text has"),
        (["--model", "{folder}/patched"], "the model carries patches"),
    ],
    "laco": [
        KINDS,
        (["--combine", "1"], "--combine 1: use 2 to 3, one more than --remove"),
        (["--combine", "4"], "--combine 4: use 2 to 3"),
        (["--combine", "2", "--layers", "2,3"], "--combine would choose layers, which --layers names"),
        (["--interval", "9", "--layers", "2,3"], "--interval would choose layers, which --layers names"),
        (["--stream"], "LaCo needs the whole model in memory"),
        (["--interval", "0"], "--interval 0: use 1 or more"),
        (
            ["--interval", "4", "--combine", "2"],
            "--remove 2: merges of C = 2 layers at an interval of 4 can take 1 of 6",
        ),
        (["--samples", "0"], "--samples 0: use 1 to 100,000"),
        (["--samples", "5000"], "108 paragraphs and 108 lines in its first nine tenths, but 5000 pieces are needed"),
        (["--text", "{folder}/one-line.txt"], "0 paragraphs and 0 lines"),
        (["--text", "{folder}/short.txt"], "pieces are needed"),
        (["--threshold", "0.5"], "--remove and --threshold contradict each other"),
        (["--sentences", "20"], "--sentences has a new name. Use --samples"),
        (["--merge", "mean"], "does not know 'mean'. Use one of"),
        (["--layers", "0,1"], "--layers names layer 0, but LaCo merges layers into the one before"),
        (["--model", "{folder}/patched"], "the model carries patches"),
        (["--model", "{folder}/hybrid"], "some have linear attention ([0, 1, 3, 4])"),
        (["--model", "{folder}/hybrid", "--layers", "2"], "some have linear attention ([1])"),
    ],
    "reassessing": [
        KINDS,
        (["--stream"], "needs the whole model in memory"),
        (["--last", "-1"], "--last -1: use 0 or more"),
        (["--last", "5"], "cannot fine-tune the last 5 layers: the model has 4 left"),
        (["--metric", "best"], "does not know 'best'. Use one of"),
        (["--finetune", "all"], "does not know 'all'. Use one of"),
        (
            ["--finetune", "none", "--last", "2"],
            "none does not use --last, --data and --batch. Choose another --finetune, or leave",
        ),
        (
            ["--finetune", "lora", "--train-at-interface"],
            "--finetune lora does not use --last and --train-at-interface",
        ),
        (["--model", "{folder}/patched"], "the model carries patches"),
        (["--data", "alpaca"], "use alpaca-cleaned, standin or a JSON-lines file"),
        (["--data", "nowhere.jsonl"], "cannot read the data nowhere.jsonl"),
        (["--data", "{folder}"], "cannot read the data"),
        (["--data", "{folder}/picture.txt"], "cannot read the data"),
        (["--data", "{folder}/column.jsonl"], "column.jsonl has no column 'input'"),
        (["--data", "{folder}/empty.jsonl"], "row 0 of empty.jsonl has an empty 'output'"),
        (["--data", "{folder}/number.jsonl"], "row 0 of number.jsonl has no text in 'output'"),
        (["--data", "{folder}/one.jsonl"], "at least 2 are needed"),
        (["--data", "{folder}/words.jsonl"], "One JSON object a line is needed"),
        (["--data", "{folder}/lists.jsonl"], "One JSON object a line is needed"),
        (["--data", "{folder}/nothing.jsonl"], "One JSON object a line is needed"),
        (["--data", "{folder}/long.jsonl"], "no example has a response within 256 tokens"),
        (["--rows", "0"], "--rows 0: use 1 or more"),
        (["--epochs", "0"], "--epochs 0.0"),
        (["--epochs", "nan"], "--epochs nan"),
        (["--epochs", "inf"], "--epochs inf"),
        (["--batch", "0"], "--batch 0: use 1 to 65,536"),
        (["--learning-rate", "0"], "--learning-rate 0.0"),
        (["--learning-rate", "nan"], "--learning-rate nan"),
        (["--learning-rate=-1e-5"], "--learning-rate -1e-05"),
        (["--learning-rate", "50"], "--learning-rate 50.0"),
        (["--metric", "taylor"], "have 128 tokens, not 4"),
        (["--metric", "bi", "--text", "{folder}/one-line.txt"], "0 paragraphs and 0 lines"),
        (["--metric", "ppl", "--text", "{folder}/short.txt"], "--text {folder}/short.txt: the calibration text has"),
    ],
}


def expected(tool: str, more: list[str], message: str) -> str:
    """Return what a tool says: the refit refuses families that it does not support before it looks at their files."""
    name = more[1].removeprefix("{folder}/") if len(more) > 1 else ""
    unsupported = tool == "refit" and name in ("gemma3-cut-short", "gpt-oss-cut-short", "deepseek-wider")
    return f"architecture '{FAMILIES[name][0]}' is not" if unsupported else message


CASES = [(tool, more, said, False) for tool in TOOLS for more, said in (*EARLY, *LATER)]
CASES += [(tool, more, expected(tool, more, said), True) for tool in TOOLS for more, said in (*COMMON, *OWN[tool])]


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
    """Nothing here may come so far as to read weights."""
    monkeypatch.setattr(loading, "load", lambda *unused, **options: pytest.fail("the weights were read"))


def tree(folder):
    """The time of each path, in a fifth of what `Path.rglob` takes."""
    contents, folders = {}, [folder]
    for directory in folders:
        for entry in os.scandir(directory):
            contents[entry.path] = entry.stat(follow_symlinks=False).st_mtime_ns
            folders += [entry.path] * entry.is_dir(follow_symlinks=False)
    return contents


@pytest.mark.parametrize("tool, more, message, removes", CASES)
def test_one_line_says_what_is_wrong(tool, more, message, removes, files, tmp_path, capsys, monkeypatch):
    if (more, message) in EARLY:
        monkeypatch.setattr("common.cli.run.main", lambda *_: pytest.fail("torch would be loaded"))
    arguments = [option.replace("{folder}", str(files)) for option in more]
    command = ["--text", str(files / "text.txt"), "--length", "128", "--samples", "4", "--test-samples", "4"]
    if tool == "reassessing":
        command += ["--data", str(files / "good.jsonl"), "--last", "1", "--batch", "4"]
    if removes and not {"--layers", "--remove", "--sweep"} & set(more):
        command += ["--remove", "2"]
    command += [] if "--model" in more else ["--model", str(files / "good")]
    command += [] if "--out" in more else ["--out", str(tmp_path / "out")]
    before = tree(files)
    status = main(method_of(tool), [*command, *arguments])
    printed = capsys.readouterr()
    assert status == 2 and printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1 and printed.err.endswith("\n")
    assert message.replace("{folder}", str(files)) in printed.err and len(printed.err) < 600
    assert tree(files) == before and not list(tmp_path.iterdir())


def test_a_model_larger_than_the_card_is_refused_before_its_weights_are_read(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loading, "placement", lambda device, dtype: None)
    monkeypatch.setattr(memory, "capacity", {"cuda": 1e5}.get)
    arguments = ["--model", str(files / "good"), "--text", str(files / "text.txt"), "--remove", "1"]
    arguments += ["--length", "16", "--samples", "2"]
    assert main(linearpatch_tool.METHOD, [*arguments, "--out", str(tmp_path / "out"), "--device", "cuda"]) == 2
    printed = capsys.readouterr().err.strip()
    assert "and cuda has" in printed and "--stream" in printed and len(printed.splitlines()) == 1
