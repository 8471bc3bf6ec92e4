"""Compare adjacent layers: their weights and outputs (LaCo, section 4.2, Figs. 4 and 5).

The paper gives no reference for its distances ("generally no more than 200", over 11008 x 4096 numbers, hence small).
The reference here is the distance of independent weights of the same size. For them |A - B|^2 = |A|^2 + |B|^2, so a
distance of sqrt(2)|W| means that two layers have nothing in common. Eq. 1, which is sum_k theta_{l+k} - (m - 1)
theta_l, then has sqrt(m + (m - 1)^2) times the norm of a layer (2.65 for m = 3, 4.58 for m = 5).
"""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from common.models.architectures import layer_list
from common.models.decoder import Decoder
from common.pruning.importance import layer_inputs
from papers.laco.merge import Merge, merged
from papers.laco.outputs import output_similarity, tokenise

MERGED = {"Eq. 1": "paper", "the code's merge": "code"}


def matrices(layer: nn.Module) -> dict[str, Tensor]:
    """Return a layer's matrices (stacked experts count as one) by their module's name, such as `q_proj` or `W_pack`."""
    return {
        name.removesuffix(".weight").rpartition(".")[2]: parameter.detach()
        for name, parameter in layer.named_parameters()
        if parameter.ndim > 1
    }


def adjacent_distances(model: nn.Module) -> dict[str, dict[str, list[float]]]:
    """Compute the distance of each matrix from the next layer's (Fig. 4).

    The paper's norm |W_l - W_{l+1}|_2 is over all entries, that is, the Frobenius norm.

    Returns:
        For every matrix by name (o_proj and gate_proj included), two lists over l = 0..N-2: `distance`, and
        `uncorrelated`, sqrt(|W_l|^2 + |W_{l+1}|^2), which independent matrices of these norms would have.
    """
    layers = [matrices(layer) for layer in layer_list(model)]
    distances = {name: {"distance": [], "uncorrelated": []} for name in layers[0]}
    for layer, following in zip(layers, layers[1:]):
        for name, matrix in layer.items():
            a, b = matrix.float(), following[name].float()
            distances[name]["distance"].append((a - b).norm().item())
            distances[name]["uncorrelated"].append(math.hypot(a.norm().item(), b.norm().item()))
    return distances


def merged_norms(model: nn.Module, followers: int = 3) -> dict[str, list[float] | float]:
    """Compute how much Eq. 1 enlarges a layer: |theta*| over the root mean square of |theta_l| .. |theta_{l+m}|.

    Only matrices count.

    Args:
        model: The model; it is not changed.
        followers: m, the number of layers merged into layer l.

    Returns:
        `ratio`, for each first layer 0..N-m-1 of a block, and `uncorrelated`: sqrt(m + (m - 1)^2), the ratio of
        independent layers. m equal layers would give 1.
    """
    layers, ratios = layer_list(model), []
    for start in range(len(layers) - followers):
        group = layers[start : start + followers + 1]
        new = merged(group, "paper")
        size = math.sqrt(sum(new[name].float().square().sum().item() for name in new if new[name].ndim > 1))
        before = sum(m.float().square().sum().item() for layer in group for m in matrices(layer).values())
        ratios.append(size / math.sqrt(before / len(group)))
    return {"ratio": ratios, "uncorrelated": math.sqrt(followers + (followers - 1) ** 2)}


@torch.no_grad()
def _states(decoder: Decoder, tokenizer, sentences: Sequence[str]) -> list[list[Tensor]]:
    """Return [sentence][boundary] -> X[boundary] [1, tokens, channels]."""
    layers = range(decoder.num_layers)
    return [list(layer_inputs(decoder, ids, layers)) for ids in tokenise(tokenizer, sentences)]


def adjacent_cosines(model: nn.Module, tokenizer, sentences: Sequence[str]) -> list[float]:
    """Compute the mean token cosine between the outputs of layers l and l + 1, for l = 0..N-2 (Fig. 5a).

    The last layer's output is taken before the final norm.
    """
    decoder = Decoder(model)
    states = _states(decoder, tokenizer, sentences)

    def outputs(boundary: int) -> list[Tensor]:
        return [sentence[boundary][0] for sentence in states]

    return [output_similarity(outputs(b), outputs(b + 1), "token") for b in range(1, decoder.num_layers)]


@torch.no_grad()
def orthogonal_cosines(model: nn.Module, tokenizer, sentences: Sequence[str]) -> list[float]:
    """Compute Fig. 5a's reference: the cosine per token if layer l + 1 added a vector orthogonal to its input.

    With X[l+1] = X[l] + D, and D of its true length but at a right angle to X[l], the cosine is |X[l]| / |(X[l], D)|.
    Lengths alone decide it, whatever the weights are.
    """
    decoder = Decoder(model)
    states = _states(decoder, tokenizer, sentences)
    cosines = []
    for boundary in range(1, decoder.num_layers):
        pairs = [(sentence[boundary][0].double(), sentence[boundary + 1][0].double()) for sentence in states]
        lengths = [(before.norm(dim=-1), (after - before).norm(dim=-1)) for before, after in pairs]  # both [tokens]
        cosines.append(torch.cat([stream / torch.hypot(stream, added) for stream, added in lengths]).mean().item())
    return cosines


def shuffled(layer: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return a copy of a layer whose matrices have their rows and columns in random order.

    Each keeps its norm and its singular values, and loses all similarity with those of other layers.
    """
    shuffled_layer = copy.deepcopy(layer)
    for parameter in shuffled_layer.parameters():
        if parameter.ndim > 1:
            rows, columns = (torch.randperm(size, generator=generator) for size in parameter.shape[-2:])
            parameter.data = parameter.data[..., rows.to(parameter.device), :][..., columns.to(parameter.device)]
    return shuffled_layer


@torch.no_grad()
def uncorrelated_outputs(model: nn.Module, tokenizer, sentences: Sequence[str], followers: int = 3) -> list[float]:
    """Compute Fig. 5b's reference: `merged_outputs` by Eq. 1 for followers whose weights are unrelated to layer l's.

    `shuffled` copies of the followers are merged into layer l. The target stays the output of the true last follower.

    Args:
        model: The model; its weights are restored afterwards.
        tokenizer: The model's tokenizer.
        sentences: Calibration sentences.
        followers: m, the number of layers merged into layer l.

    Returns:
        One similarity for each first layer 0..N-m-1 of a block.
    """
    decoder = Decoder(model)
    states = _states(decoder, tokenizer, sentences)
    generator = torch.Generator().manual_seed(0)
    similarities = []
    for start in range(decoder.num_layers - followers):
        group = decoder.layers[start : start + followers + 1]
        merge = Merge([group[0], *(shuffled(layer, generator) for layer in group[1:])], "paper")
        try:
            outputs = [decoder.run(sentence[start], start, start + 1)[0] for sentence in states]
        finally:
            merge.undo()
        target = [sentence[start + followers + 1][0] for sentence in states]
        similarities.append(output_similarity(outputs, target, "token"))
    return similarities


@torch.no_grad()
def merged_outputs(model: nn.Module, tokenizer, sentences: Sequence[str], followers: int = 3) -> dict[str, list[float]]:
    """Compare a merged layer's output with the output of the last layer merged into it (Fig. 5b).

    The paper merges four layers into one for blocks within layers 10 to 19. The two references show how little the
    residual stream changes over four layers anyway; without them a cosine near 1 says nothing.

    Args:
        model: The model; its weights are restored afterwards.
        tokenizer: The model's tokenizer.
        sentences: Calibration sentences.
        followers: m, the number of layers merged into the first of a block.

    Returns:
        For each first layer 0..N-m-1 of a block, the similarity after both merges of `MERGED`, and two references:
        `first layer alone`, whose followers are dropped unmerged, and `no layer`, the block's input itself.
    """
    decoder = Decoder(model)
    states = _states(decoder, tokenizer, sentences)
    similarities: dict[str, list[float]] = {name: [] for name in (*MERGED, "first layer alone", "no layer")}
    for start in range(decoder.num_layers - followers):
        target = [sentence[start + followers + 1][0] for sentence in states]

        def against(hidden: list[Tensor], target=target) -> float:
            return output_similarity([h[0] for h in hidden], target, "token")

        inputs = [sentence[start] for sentence in states]
        for name, rule in MERGED.items():
            merge = Merge(decoder.layers[start : start + followers + 1], rule)
            try:
                similarities[name].append(against([decoder.run(hidden, start, start + 1) for hidden in inputs]))
            finally:
                merge.undo()
        similarities["first layer alone"].append(against([sentence[start + 1] for sentence in states]))
        similarities["no layer"].append(against(inputs))
    return similarities
