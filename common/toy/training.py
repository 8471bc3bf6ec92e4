"""Training of the toy model; ``python -m common.toy.train`` runs it.

Text -> byte-level BPE -> shuffled 256-token sequences -> AdamW with a warm-up, a flat stretch and a linear decay to zero.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from common.toy import WEIGHTS, corpus
from common.utils import atomic_files
from common.utils.errors import UserError

log = logging.getLogger("standin.train")
END = "<|endoftext|>"


@dataclass(frozen=True)
class Setting:
    """Training settings of the shipped toy model."""

    layers: int = 16
    hidden: int = 192
    heads: int = 3
    feed_forward: int = 512
    vocabulary: int = 4096
    window: int = 256
    batch: int = 8
    tokens: int = 25_000_000
    learning_rate: float = 1.5e-3
    warmup_steps: int = 200
    decay_share: float = 0.3
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0

    @property
    def steps(self) -> int:
        """Optimiser steps in the whole run."""
        return self.tokens // (self.batch * self.window)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, flat, then linear to zero over the last ``decay_share``."""
        start = self.steps * (1 - self.decay_share)
        decay = min(1.0, (self.steps - step) / max(1.0, self.steps - start))
        return self.learning_rate * min(1.0, (step + 1) / self.warmup_steps) * decay


def train_tokenizer(texts: Iterator[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the training split; one special token ends a document and precedes a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END, model_max_length=1_000_000
    )


def build_model(setting: Setting) -> LlamaForCausalLM:
    """Return a LLaMA whose residual projections start (2N)^-1/2 smaller, so that the stream grows evenly with depth."""
    torch.manual_seed(setting.seed)
    config = LlamaConfig(
        vocab_size=setting.vocabulary,
        hidden_size=setting.hidden,
        intermediate_size=setting.feed_forward,
        num_hidden_layers=setting.layers,
        num_attention_heads=setting.heads,
        num_key_value_heads=setting.heads,
        max_position_embeddings=2 * setting.window,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
                writer.weight.mul_((2 * setting.layers) ** -0.5)
    return model


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[np.ndarray]:
    """Return the token ids of each text, after the end token (which also marks the beginning of a text)."""
    batches = tokenizer.backend_tokenizer.encode_batch(texts)
    return [np.array([tokenizer.eos_token_id, *b.ids], dtype=np.uint16) for b in batches]


class Windows:
    """Training batches by step number: documents shuffled anew each epoch, joined and split into sequences."""

    def __init__(self, documents: list[np.ndarray], setting: Setting) -> None:
        self.documents, self.setting, self.epoch = documents, setting, -1
        tokens = sum(map(len, documents))
        self.batches_per_epoch = tokens // (setting.window * setting.batch)

    def batch(self, step: int) -> torch.Tensor:
        """Return the ``[batch, window]`` token ids of one step."""
        epoch, index = divmod(step, self.batches_per_epoch)
        if epoch != self.epoch:
            order = np.random.default_rng([self.setting.seed, epoch]).permutation(len(self.documents))
            stream = np.concatenate([self.documents[i] for i in order])
            shape = (self.batches_per_epoch, self.setting.batch, self.setting.window)
            windows = stream[: math.prod(shape)].reshape(-1, self.setting.window)
            # Neighbouring sequences come from one document: spread them over the epoch.
            shuffle = np.random.default_rng([self.setting.seed, epoch, 1]).permutation(len(windows))
            self.windows, self.epoch = windows[shuffle].reshape(shape), epoch
        return torch.from_numpy(self.windows[index].astype(np.int64))


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, windows: torch.Tensor) -> float:
    """Compute the mean next-token loss in nats over ``[n, window]`` token ids."""
    model.eval()
    losses = [model(input_ids=w, labels=w, use_cache=False).loss.item() for w in windows.split(16)]
    model.train()
    return float(np.mean(losses))


def train(setting: Setting, out: Path, *, save_every: int = 200, eval_every: int = 100) -> LlamaForCausalLM:
    """Run or resume the training in ``out``; return the trained model (float32)."""
    out.mkdir(parents=True, exist_ok=True)
    torch.set_flush_denormal(True)
    texts = [d.passage for d in corpus.split_documents("train")]
    if not (out / "tokenizer").exists():
        train_tokenizer(iter(texts), setting.vocabulary).save_pretrained(out / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "tokenizer")
    windows = Windows(encode(tokenizer, texts), setting)
    log.info("%d documents, %.2f M tokens", len(texts), sum(map(len, windows.documents)) / 1e6)
    held_out = np.concatenate(encode(tokenizer, [d.passage for d in corpus.split_documents("valid")]))
    held_out = torch.from_numpy(held_out[: len(held_out) // setting.window * setting.window].astype(np.int64))
    held_out = held_out.view(-1, setting.window)[:128]

    model = build_model(setting)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    undecayed = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": setting.weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)
    first, seconds = 0, 0.0
    if (out / "checkpoint.pt").exists():
        state = torch.load(out / "checkpoint.pt", weights_only=True)
        settings = {k: v for k, v in state["setting"].items() if k not in ("tokens", "decay_share")}
        if any(asdict(setting)[k] != v for k, v in settings.items()):
            raise UserError(f"{out} holds a run with other settings {state['setting']}; choose another --out")
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        first, seconds = state["step"], state["seconds"]
        log.info("resumed at step %d of %d", first, setting.steps)

    started = time.perf_counter() - seconds
    running: list[float] = []
    progress = tqdm(range(first, setting.steps), initial=first, total=setting.steps, disable=not sys.stderr.isatty())
    with (out / "log.jsonl").open("a") as logged:
        for step in progress:
            for group in optimiser.param_groups:
                group["lr"] = setting.rate(step)
            ids = windows.batch(step)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            running.append(loss.item())
            if not math.isfinite(running[-1]):
                raise UserError(f"the loss is {running[-1]} at step {step}; the last good state is {out}/checkpoint.pt")
            done = step + 1
            if done % eval_every == 0 or done == setting.steps:
                line = {"step": done, "tokens": done * setting.batch * setting.window, "rate": setting.rate(step)}
                line |= {"train": float(np.mean(running)), "valid": held_out_loss(model, held_out)}
                line["seconds"] = time.perf_counter() - started
                logged.write(json.dumps(line) + "\n")
                logged.flush()
                log.info("%s", line)
                running.clear()
            if done % save_every == 0 or done == setting.steps:
                state = {"step": done, "setting": asdict(setting), "seconds": time.perf_counter() - started}
                state |= {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
                with atomic_files.whole(out / "checkpoint.pt") as file:
                    torch.save(state, file)
    return model


def export(out: Path) -> None:
    """Write the run's model (bfloat16), tokenizer, log and facts to `WEIGHTS` as a Hugging Face checkpoint."""
    if not (out / "checkpoint.pt").exists():
        raise UserError(f"cannot export {out}: it holds no checkpoint.pt. Train first: leave --export out")
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    setting = Setting(**state["setting"])
    model = build_model(setting)
    model.load_state_dict(state["model"])
    model.config._attn_implementation = "sdpa"
    model.to(torch.bfloat16).save_pretrained(WEIGHTS)
    PreTrainedTokenizerFast.from_pretrained(out / "tokenizer").save_pretrained(WEIGHTS)
    lines = {json.loads(line)["step"]: line for line in (out / "log.jsonl").read_text().splitlines()}
    (WEIGHTS / "training-log.jsonl").write_text("\n".join(lines[step] for step in sorted(lines)) + "\n")
    facts = {
        "setting": asdict(setting),
        "tokens": state["step"] * setting.batch * setting.window,
        "seconds": round(state["seconds"]),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "corpus": {split: corpus.digest(split) for split in corpus.SPLITS},
        "sources": corpus.sources(),
    }
    (WEIGHTS / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
