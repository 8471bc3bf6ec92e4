"""What passes through a model: its stream, its logits, how many pass the head at once and are alive meanwhile."""

import weakref

import torch
from torch import nn

from common.hooks import Patch, patches


@torch.no_grad()
def logits(model: nn.Module, ids: torch.Tensor, **options) -> torch.Tensor:
    """Return a model's logits [samples, tokens, vocabulary] of ids [samples, tokens]."""
    return model(input_ids=ids, use_cache=False, **options).logits


@torch.no_grad()
def greedy_text(model: nn.Module, tokenizer, text: str, tokens: int) -> str:
    """Return up to so many likeliest tokens after a text, each from a full forward pass: no cache, no padding."""
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    start = ids.shape[1]
    while ids.shape[1] < start + tokens and (token := logits(model, ids)[0, -1].argmax()) != tokenizer.eos_token_id:
        ids = torch.cat([ids, token.view(1, 1)], 1)
    return tokenizer.decode(ids[0, start:], skip_special_tokens=True)


@torch.no_grad()
def step_by_step(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of tokens that are fed one by one, with a cache: what `generate` might paper over."""
    cache, steps = None, []
    for position in range(ids.shape[1]):
        output = model(ids[:, position : position + 1], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        steps.append(output.logits)
    return torch.cat(steps, dim=1)


@torch.no_grad()
def streams(model: nn.Module, ids: torch.Tensor) -> list[torch.Tensor]:
    """Return X[0] .. X[N] as Hugging Face's forward pass hands them on, after patches and before the final norm."""
    seen: list[torch.Tensor] = []
    receivers = [*model.model.layers, model.model.norm]
    hooks = [module.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for module in receivers]
    logits(model, ids)
    for hook in hooks:
        hook.remove()
    return seen


def sublayer_streams(model: nn.Module, ids: torch.Tensor) -> list[torch.Tensor]:
    """Return the residual stream before every attention and MLP, as layers and norms receive it, and after the last."""
    seen: list[torch.Tensor] = []
    inner = "pre_feedforward_layernorm" if model.config.model_type == "gemma2" else "post_attention_layernorm"
    receivers = [module for layer in model.model.layers for module in (layer, getattr(layer, inner))]
    hooks = [m.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for m in (*receivers, model.model.norm)]
    logits(model, ids)
    for hook in hooks:
        hook.remove()
    return seen


def detach_patches(model: nn.Module) -> list[Patch]:
    """Remove all patches from the model and return them, in order of execution."""
    attached = patches(model)
    for module in [*model.model.layers, model.model.norm]:
        module._forward_pre_hooks.clear()
    return attached


def watch_head(model: nn.Module) -> tuple[list[int], list[int]]:
    """Return two lists that grow with every call of the head: its positions, and how many logits still exist, its own too."""
    rows: list[int] = []
    alive: list[int] = []
    references: list[weakref.ref] = []

    def hook(module, inputs, logits):
        references.append(weakref.ref(logits))
        rows.append(logits.numel() // logits.shape[-1])
        alive.append(sum(reference() is not None for reference in references))

    model.lm_head.register_forward_hook(hook)
    return rows, alive
