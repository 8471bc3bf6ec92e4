"""Measure a pruned model's cost and its layers' relations: parameters, MACs, memory, latency, similarity matrices."""

import statistics
import time

import torch

from common.calibration import corpora, similarity
from common.evaluation.windowed_perplexity import split_into_sequences
from common.models import sizes
from common.pruning.pipeline import Context
from common.utils.errors import UserError
from reproductions.measurements import benchmark
from reproductions.measurements.partial_records import held_out_loss, training_cost
from reproductions.measurements.shape_only import MACS_TOKENS

# Sequences timed, and how often: the median of the passes is kept.
WINDOWS, PASSES = 32, 3
# The text of each profile, and the length of its sequences.
TEXT = {"standin": ("standin-test", 256), "paper": ("wikitext2-test", 2048)}


def _test_sequences(context: Context, count: int) -> torch.Tensor:
    """Return held-out sequences [count, tokens] of the profile's test text."""
    corpus, length = TEXT[context.recipe.profile]
    return split_into_sequences(corpora.joined_ids(context.tokenizer, corpus), length)[:count]


@torch.inference_mode()
def pass_seconds(model: torch.nn.Module, sequences: torch.Tensor) -> float:
    """Measure the seconds of a pass over sequences [count, tokens], one at a time.

    On a CPU they are the process's CPU time, summed over its threads, so that other work on the machine does not count.
    """
    clock = time.process_time if sequences.device.type == "cpu" else time.perf_counter
    started = clock()
    for sequence in sequences.split(1):
        model(sequence, use_cache=False)
    if sequences.device.type == "cuda":
        torch.cuda.synchronize(sequences.device)
    return clock() - started


@benchmark("statistics", reads=TEXT["paper"][:1])
@torch.inference_mode()
def _statistics(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure Table D: parameters, multiply-adds for 64 tokens, memory as loaded, seconds for a pass over test sequences.

    Seconds are this machine's: `device` and `threads` stand beside them, and they are not the paper's quantity.
    """
    model = context.model
    sequences = _test_sequences(context, WINDOWS).to(model.get_input_embeddings().weight.device)
    pass_seconds(model, sequences)
    seconds = [pass_seconds(model, sequences) for _ in range(PASSES)]
    values = {"parameters": sizes.parameters(model), "memory_mib": sizes.held_mib(model)}
    values |= {"latency_seconds": statistics.median(seconds)}
    try:
        values["multiply_adds"] = sizes.multiply_adds(model, MACS_TOKENS)
        status = "ok"
    except UserError as error:  # experts: which matrices a token sees is not fixed
        status = str(error)
    details = {"seconds": seconds, "windows": list(sequences.shape), "device": str(sequences.device), "status": status}
    return values, {}, details | {"threads": torch.get_num_threads(), "dtype": str(model.dtype).removeprefix("torch.")}


@benchmark("similarity", reads=TEXT["paper"][:1])
def _similarity(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure the layers' similarity matrix (`cka` or `cosine`) on 1,024 held-out tokens; values: mean off the diagonal."""
    ids = _test_sequences(context, 64).flatten()[:1024].view(4, 256)
    matrix = similarity.layer_similarity(context.decoder, ids, argument or "cka")
    count = len(matrix)
    mean = float((matrix.sum() - matrix.diagonal().sum()) / (count * (count - 1)))
    return {"mean": mean}, {}, {"matrix": [[round(v, 6) for v in row] for row in matrix.tolist()]}


@benchmark("training-cost")
def _training_cost(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure what the recipe's fine-tuning took: trained parameters, seconds, peak memory, layer executions."""
    report = context.details.get("training")
    if report is None:
        raise UserError("this recipe has no fine-tuning whose cost could be told")
    return training_cost(report), {}, {"device": str(context.model.device)}


@benchmark("held-out-loss")
def _held_out_loss(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure the loss per token (nats) of the instructions that the fine-tuning left out, of the state that was kept."""
    values, details = held_out_loss(context.details.get("training"))
    return values, {}, details


@benchmark("held-memory")
def _memory(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure the memory of the model's tensors with 16 bits for every floating-point number."""
    return {"held_mib": sizes.held_mib(context.model, floating=2)}, {}, {}


@benchmark("removed-each")
def _removed_each(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure the removed layers by their place in the order of removal, from 1 (Table O prints them so)."""
    removed = context.details.get("removed", [])
    return {str(place): layer for place, layer in enumerate(removed, 1)}, {}, {}
