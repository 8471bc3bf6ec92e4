"""Measure the league's texts, and the cost of every block of layers.

The texts have so few tokens that hundreds of rows can be measured, spread so that they are like the whole.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from common.calibration import massive_activations
from common.calibration.layer_inputs import ATTENTION, MLP
from common.console.progress import track
from common.evaluation.windowed_perplexity import PROTOCOLS, Protocol, register, spread
from common.forward.losses import next_token_loss
from common.pruning.importance import losses_without_blocks
from common.pruning.pipeline import Context
from common.pruning.selection import block_starts
from extensions.league import rows
from extensions.refit.graft import Observed
from reproductions.measurements import benchmark

WINDOW = 512
register(
    Protocol("league-wikitext2", "wikitext2-test", WINDOW, sequences=spread(48)),
    Protocol("league-ptb", "ptb-test", WINDOW, sequences=spread(24)),
)

LOOKED_AT = 8  # of a text's sequences, evenly spread
CHOICES = {rows.BLOCK: "cosine", rows.LEAST_RESIDUAL_BLOCK: "least_left", rows.LEAST_LOSS_BLOCK: "least_loss"}


@benchmark("windows")
@torch.inference_mode()
def _blocks(context: Context, argument: str) -> tuple[dict, dict, dict, dict]:
    """Measure what removing every block of the recipe's length costs by the named protocol, and which are chosen.

    Each is measured as it is, with the first token's own, dense state put back where the block ends, and with the neurons
    grafted that write the massive activation, if their layer is removed (`extensions.refit.graft`). values: the
    perplexities (``kept``, ``carried``) at the blocks that CHOICES names and at the cheapest. details: by first layer the
    mean increase of the loss and its standard error, paired with the dense model's sequences; norms at layers' inputs.
    """
    decoder, count = context.decoder, context.recipe.selection["count"]
    ids = PROTOCOLS[argument].sequences(PROTOCOLS[argument], context.tokenizer)[: context.recipe.limit]
    ids = ids[:: max(1, len(ids) // LOOKED_AT)][:LOOKED_AT]
    starts = block_starts(decoder.num_layers, count, exclude_ends=True)
    dense = []
    with massive_activations.watched(context.model) as norms:
        for batch in ids.split(context.batch_size):
            dense.append(next_token_loss(decoder, decoder.run(decoder.embed_tokens(batch)), batch).double().cpu())
    dense = torch.cat(dense)

    def first_put_back(trial: Tensor, whole: Tensor) -> Tensor:
        return torch.cat([whole[:, :1], trial[:, 1:]], 1)

    entering = {"plain": None, "kept": first_put_back}
    trials = {
        name: losses_without_blocks(decoder, ids, count, starts, entering=change, **context.pass_options)
        for name, change in entering.items()
    }
    trials["carried"] = _carried(context, ids, count, starts)
    chosen = {}
    for name, key in CHOICES.items():
        recipe = replace(context.recipe, selection=rows.selections(count)[name])
        chosen[key] = min(replace(context, recipe=recipe, details={}).selection.choose(context))
    chosen["cheapest"] = min(starts, key=lambda start: trials["plain"][start].mean())
    values = {"windows": len(starts), "dense": math.exp(dense.mean())}
    for key, start in chosen.items():
        if start in trials["plain"]:  # [L] may take an end
            values[key] = math.exp(trials["plain"][start].mean())
            values[f"{key}_kept"] = math.exp(trials["kept"][start].mean())
            values[f"{key}_carried"] = math.exp(trials["carried"].get(start, trials["plain"][start]).mean())
    if norms.writer is not None:
        values["writer"] = norms.writer

    def increase(losses: Tensor) -> dict:
        more = losses - dense
        return {"more": more.mean().item(), "se": more.std().item() / math.sqrt(len(more))}

    by_start = [
        {"start": start} | {name: increase(of[start]) for name, of in trials.items() if start in of} for start in starts
    ]
    details = {"rows": by_start, "chosen": chosen, "first": norms.first, "median": norms.median}
    return values, {}, details | {"tokens": ids.numel()}, {}


def _carried(context: Context, ids: Tensor, count: int, starts: Sequence[int]) -> dict[int, Tensor]:
    """Return the losses with grafted neurons, by first layer of the blocks whose removal needs them."""
    decoder, losses = context.decoder, {}
    if decoder.spec.matrices != (ATTENTION, MLP):
        return losses
    observed = Observed(decoder, context.sequences())
    for start in track(starts, "blocks with grafted neurons", unit="block", shown=context.progress):
        if (graft := observed.graft(range(start, start + count))) is None:
            continue
        host = decoder.layers[graft.host]
        weights = {name: value.clone() for name, value in host.mlp.state_dict().items()}
        graft.into(host)
        losses |= losses_without_blocks(decoder, ids, count, [start], batch_size=context.batch_size)
        host.mlp.load_state_dict(weights)
    return losses
