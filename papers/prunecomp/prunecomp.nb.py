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
# # Prune&Comp, step by step
#
# **Is what a removed layer leaves behind mostly a matter of magnitude?** Prune&Comp removes whole decoder layers and
# multiplies the weights before each cut by one factor, so that the layers behind it receive a stream of the magnitude they
# are used to. Nothing is trained, and the result is a plain checkpoint.
#
# This notebook follows the paper on the toy model, the small model that lives in this repository: what a removed layer leaves
# behind (Eq. 3), the five metrics (Eqs. 4 to 8), one factor and how it disappears into the weights (Eqs. 9 to 13), and
# Algorithm 1. It only imports; every number below is computed in its cell or read from a published record. The toy model is a
# thousand times smaller than the paper's models, and its numbers are its own. One section runs SmolLM2, another has its
# records. The last section answers the question and says which of the paper's claims hold, and by how much.

# %%
import copy

import torch
import transformers
from IPython.display import Markdown

from common.calibration import sample_crops
from common.calibration.corpora import joined_ids
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.hooks import scale_stream
from common.models import loading
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.recipe import Calibration
from common.records.results import Store
from figures import prunecomp as drawings
from figures.style import above, plt
from papers.prunecomp import METRICS, Stream, fuse_factor, next_layer, prune_and_compensate
from reproductions.documents import findings
from reproductions.prunecomp.recipes import CROPS
from reproductions.render import show, tables
from reproductions.spec import registry, subjects

# %matplotlib inline
torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
model, tokenizer = loading.load("standin")
crops = Calibration.from_json(CROPS["standin"] | {"count": 8})
windows = sample_crops(joined_ids(tokenizer, crops.corpus), **crops.drawing())
held_out = PROTOCOLS["standin-standard-library-thin"]
print(
    f"{model.config.num_hidden_layers} layers, {model.config.hidden_size} channels; calibration {list(windows.shape)}"
)

# %% [markdown]
# ## The magnitude gap (Eq. 3, Figure 2)
#
# For each layer: per sequence and channel, the L1 norm over tokens of what the layer returns over that of what it receives;
# the mean over channels and sequences, less one. One pass over the calibration tokens gives all layers, and with them the
# cosines that CosSim(BI) ranks by.

# %%
stream = Stream(Decoder(model), windows)
cosines = stream.cosines()
gains = [100 * (stream.factor(layer) - 1) for layer in stream.layers]
figure, axes = plt.subplots(figsize=(4.6, 2.4))
drawings.gain_bars(axes, gains)
above(figure, "toy model, 16 layers, none removed")

# %%
print("layer  cosine   gain %")
for layer, cosine, gain in zip(stream.layers, cosines.tolist(), gains):
    print(f"{layer:5}  {cosine:.4f}  {gain:+7.2f}")

# %% [markdown]
# ## Five metrics (Eqs. 4 to 8)
#
# Lower scores go first. BI looks at each layer's cosine (of which the highest goes), CL at windows of n layers at once, PPL
# at the loss of the model without a layer, Taylor+ at weight times gradient, Mag+ at the weights alone; the last two keep the
# first four and the last two layers. Here all four layers are chosen at once, from the model as it is.

# %%
few = {"ppl": windows[:2]}  # many trials: a quarter of the text will do here
print("metric    one-shot")
for metric in METRICS:
    options = {"metric": metric, "metric_windows": few.get(metric), "iterative": False, "compensate": False}
    report = prune_and_compensate(copy.deepcopy(model), windows, 4, **options)
    print(f"{metric:9} {report['removed']}")

# %% [markdown]
# ## One removal, compensated (Eqs. 9 to 13)
#
# CosSim(BI) removes the layer with the highest cosine. Its factor alpha is measured while it is still there: the printed
# algorithm prunes first, the text and the official code measure first.
#
# Scaling the stream at the cut would cost a multiplication at run time (Eq. 10). Multiplying the embedding, and every
# `o_proj` and `down_proj` before the cut, does the same: the norms take the scale out again before attention and MLP. They do
# so up to their epsilon, which is what the two models below differ by.

# %%
layer = next_layer(stream, "bi")
alpha = stream.factor(layer)
hooked, fused = copy.deepcopy(model), copy.deepcopy(model)
for pruned in (hooked, fused):
    remove_layers(pruned, [layer])
fuse_factor(fused, layer, alpha)
with torch.no_grad():
    plain = hooked(windows[:4], use_cache=False).logits
    with scale_stream(hooked, layer, alpha):
        at_the_cut = hooked(windows[:4], use_cache=False).logits
    in_the_weights = fused(windows[:4], use_cache=False).logits
print(f"layer {layer}, alpha = {alpha:.4f}")
print(f"largest change of a logit by the factor: {(at_the_cut - plain).abs().max():.3f}")
print(f"largest difference between hook and fused weights: {(at_the_cut - in_the_weights).abs().max():.4f}")

# %% [markdown]
# ## Algorithm 1
#
# Choose, measure the factor, remove, compensate, and again; CL, whose window goes at once, has one factor. Fusing changes
# nothing for BI, PPL and Taylor (a weight grows as its gradient shrinks). For Mag+ it can: scaled layers look larger. Of this
# model it changes none of the four choices; of SmolLM2 it drives them behind the cut, and perplexity far up (Table 1).

# %%
print("metric    Prune&Comp    factors")
for metric in METRICS:
    report = prune_and_compensate(copy.deepcopy(model), windows, 4, metric=metric, metric_windows=few.get(metric))
    print(f"{metric:9} {report['removed']}  {[round(factor, 3) for factor in report['factors']]}")

# %% [markdown]
# What its parts do: perplexity on one held-out text with 4 of 16 layers removed by CosSim(BI), by each part alone and by both
# together (the paper's Table 4). On this model, factors alone change little; in the loop they change what is removed.

# %%
print(f"dense                     {held_out.measured(model, tokenizer, progress=False)['perplexity']:8.2f}")
for iterative in (False, True):
    for compensated in (False, True):
        small = copy.deepcopy(model)
        report = prune_and_compensate(small, windows, 4, iterative=iterative, compensate=compensated)
        name = f"{'iterative' if iterative else 'one-shot'}, {'compensated' if compensated else 'as it is'}"
        found = held_out.measured(small, tokenizer, progress=False)["perplexity"]
        print(f"{name:25} {found:8.2f}  removed {report['removed']}")

# %% [markdown]
# ## What an iteration costs
#
# A removal and its factor change nothing before the cut but the scale, so stored states stay valid up to the factor and the
# next iteration runs the suffix alone. The naive loop runs every remaining layer for the metric, and again twice for the
# factor's two states.

# %%
stream = Stream(Decoder(model), windows, batch_size=16)
naive = 0
for remaining in (16, 15, 14, 13):
    layer = next_layer(stream)
    naive += 3 * remaining
    stream.remove(layer, stream.factor(layer))
    print(f"removed {layer:2}: {stream.decoder.executions:3} layer executions so far, naively {naive}")

# %% [markdown]
# ## The paper's tables on the toy model
#
# From the published records (`make table4-prunecomp` measures them): the ablation, with the paper's claim checked on both
# sides.

# %%
store = Store()
Markdown(tables.render(show.build(registry.get("table4-prunecomp"), store, "standin"), "md"))

# %% [markdown]
# And the grid that none of the four papers has: every metric with every repair, one-shot and iterative (`make grid`; 5 of
# 16 layers removed, average perplexity over three texts, darker is better). BI and PPL take the same five layers at once,
# so their rows are equal; CL's window goes at once only. With a repair in place while layers are chosen, others may go:
# that is how Taylor+, one by one, has 47.4 without a repair and 32.1 with factors.

# %%
table = registry.get("grid")
texts = [column.benchmark for column in table.columns("standin")[:3]]  # three perplexities
entries = []
for row in table.rows("standin", None):
    records = {name: vars(record) for name in texts if (record := store.get(row.recipe, name))}
    entries.append({"method": row.method, "spec": row.spec, "records": records})
above(drawings.grid(entries, "standin"), "toy model, 5/16 layers removed")

# %% [markdown]
# ## A small run on a real LLM
#
# SmolLM2-135M-Instruct, whose weights come with a package of the package index (fetched once), loses 5 of its 30 layers by
# CosSim(BI), the toy model 3 of its 16. All are chosen at once, so that the factors are all that differs. Eight crops and six
# held-out windows of docstrings are no evidence: the published records, in the next section and the last, judge the claims.

# %% tags=["downloads"]
llm, words = loading.load("smollm2-135m-instruct", dtype="bfloat16")
its_windows = sample_crops(joined_ids(words, crops.corpus), **crops.drawing())

# %% tags=["downloads"]
for name, net, reader, read, count in (
    ("toy model", model, tokenizer, windows, 3),
    ("SmolLM2", llm, words, its_windows, 5),
):
    print(f"{name}, dense: {held_out.measured(net, reader, limit=6, progress=False)['perplexity']:.2f}")
    for compensated in (False, True):
        small = copy.deepcopy(net)
        report = prune_and_compensate(small, read, count, iterative=False, compensate=compensated)
        found = held_out.measured(small, reader, limit=6, progress=False)["perplexity"]
        factors = [round(factor, 3) for factor in report["factors"]]
        print(f"  without {report['removed']}, factors {factors or 'none'}: {found:.2f}")

# %% [markdown]
# ## The records of that LLM
#
# SmolLM2-135M-Instruct, from published records: the loop and the factors, apart and together (Table 4). Here it is the
# factors that help; choosing anew after each removal costs with 7 layers gone, with factors and without, and changes little
# with 5 (Figure 1).

# %%
real = subjects.of_model("smollm2-135m-instruct")
Markdown(tables.render(show.build(registry.get("table4-prunecomp"), store, real), "md"))

# %% [markdown]
# ![Average perplexity for each number of pruned layers: nothing, one part of the method, the other, both; on
# SmolLM2-135M-Instruct](../../figures/rendered/figure1-prunecomp-smollm2-135m-instruct.svg)

# %% [markdown]
# ## What holds
#
# **Is it mostly a matter of magnitude?** Not on these two models. In Table 4 the factors alone lower perplexity a little on
# the toy model and by a fifth on SmolLM2, where the dense model stays far below; which layers go matters as much. Answers to
# questions rise beyond the noise on SmolLM2 with PPL (5 and 7 layers gone) and with CosSim(BI) (7 and 8), and fall with
# Mag+ (5, 7 and 8) and with Taylor+ (7); on the toy model they rise in three of ten settings and fall in two.
#
# Every claim of the paper's tables and figures, on its own printed numbers, on SmolLM2-135M-Instruct and on the toy model,
# from the published records: how many of its comparisons hold, then the one least in its favour with its 95 % interval.

# %%
Markdown(findings.every("prunecomp", store))
