"""Commands of README and docs, carried out as printed: in a copy of the project, on tiny models, with a mirror of the hub.

`test_commands` reads every command; here those run that need no download, no GPU and no minutes.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_mirror import _hellaswag, write_rows
from test_commands import FOUND
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[1]
# What stands in a command -> why it is not carried out. `make publish` and what follows it would change tracked files.
LEFT_OUT = {
    "make test": "it runs this",
    "DEVICE=cuda": "it needs a GPU",
    "Qwen/": "it downloads a model of the hub",
    "smollm2": "it downloads SmolLM2",
    "MINUTES=9": "it measures bigger models for minutes",
    "make publish": "it publishes what a user measured",
    "channel-means": "it measures the repair that the page lets its reader write",
    "make reassessing": "it prints thirty tables",
    "make report": "tests/reproductions/site builds the site",
    "make shell": "it waits for what is typed",
    "FORCE=1": "it measures on the toy model for minutes",
    "SEED=3": "it measures on the toy model for minutes",
    "--remove 8 --out ./my-model-pruned": "make prune does the same",
    "--remove 8 --plan --measure": "README's command removes 4 layers and is carried out",
    "NAME_OR_PATH --remove 8 --out": "it trains on a data set that the mirror lacks",
    "--sweep": "it prunes eight times; tests/common/cli runs it on less text",
    "--max-perplexity-increase": "it prunes several times; tests/common/cli runs it on less text",
    "table1-linearpatch MODEL=./my-model": "it measures a table of eight tasks, whose data the mirror lacks",
}
PLACEHOLDERS = {"NAME_OR_PATH": "./my-model", "DIR": "./my-output"}
WORDS = ("the", "layers", "of", "a", "model", "are", "removed", "and", "it", "is", "scaled", "by", "one", "number")


def left_out(command):
    """Return why a command is not carried out; None: it is."""
    return next((reason for part, reason in LEFT_OUT.items() if part in " ".join(command)), None)


COMMANDS = sorted({tuple(command) for _, command in FOUND if not left_out(command)})


def test_what_is_left_out_stands_in_a_page():
    for part in LEFT_OUT:
        assert any(part in " ".join(command) for _, command in FOUND), part


def write_texts(hub):
    """Write the two training splits that calibrate by default, and the test split of WikiText-2."""
    draw = random.Random(0)
    lines = {"train": 3500, "test": 700}
    for split, count in lines.items():
        rows = [{"text": " ".join(draw.choices(WORDS, k=60)) + " . \n"} for _ in range(count)]
        write_rows(hub, "Salesforce/wikitext", "wikitext-2-raw-v1", split, rows)
    stories = [{**_hellaswag(i), "ctx": " ".join(draw.choices(WORDS, k=60))} for i in range(3500)]
    write_rows(hub, "Rowan/hellaswag", None, "train", stories)


@pytest.fixture(scope="module")
def project(tmp_path_factory, tiny_tokenizer):
    """A copy of the tracked files with this environment, in whose folder the two models lie that the pages name."""
    folder = tmp_path_factory.mktemp("clone") / "project"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    (folder / ".venv").symlink_to(sys.prefix)
    for name in ("requirements.lock", "pyproject.toml"):  # older than the environment: it is up to date
        os.utime(folder / name, (0, 0))
    torch.manual_seed(3)
    sizes = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,  # a sequence has as many tokens, unless told otherwise
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.05))
    for name in ("my-model", "llama-2-7b"):
        model.save_pretrained(folder / name)
        tiny_tokenizer.save_pretrained(folder / name)
    write_texts(folder.parent / "hub")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_runs_as_printed(command, project):
    # a folder that an earlier command wrote is refused: each page's begins without it
    for folder in project.glob("my-*-*"):
        shutil.rmtree(folder)
    words = [PLACEHOLDERS.get(word, word) for word in command]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LAYERLAB_")}
    environment |= {
        "PATH": f"{project / '.venv' / 'bin'}:{os.environ['PATH']}",
        "LAYERLAB_HUB": str(project.parent / "hub"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()
    if "--out" in words:
        assert (project / words[words.index("--out") + 1]).is_dir()
