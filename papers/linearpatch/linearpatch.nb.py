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
# # LinearPatch, walked through
#
# **Can one matrix, measured and not trained, put back what removed layers took from a language model?** *A Simple Linear
# Patch Revives Layer-Pruned Large Language Models* says so of a symmetric matrix in the place of a window of layers. This
# notebook follows its sections on the **toy model**, a model of 8.7 M parameters that lies in this repository; one section
# runs SmolLM2, another has its records, and tables repeat the paper's printed numbers beside ours. Nothing measured here says
# anything about the paper's models. Nothing is defined here; each step imports the function that is the equation. The last
# section answers the question and says which of the paper's claims hold, and by how much.

# %%
import copy

import torch
import transformers
from IPython.display import Markdown

from common import calibration
from common.calibration import collect, corpora
from common.evaluation.windowed_perplexity import PROTOCOLS, perplexity
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
dense, tokenizer = loading.load("standin")
decoder = Decoder(dense)
store = Store()

# %% [markdown]
# ## Calibration (sections 3.1 and 4.2)
#
# The paper takes 128 random crops of its training text; 32 are enough here (Table 10 says why).

# %%
ids = corpora.joined_ids(tokenizer, "standin-calibration")
windows = calibration.sample_crops(ids, length=256, count=32, seed=2)
text = PROTOCOLS["standin-numerical"].windows(PROTOCOLS["standin-numerical"], tokenizer)[:12].flatten()
print(f"calibration {tuple(windows.shape)}; held-out text of {len(text)} tokens")
print(f"perplexity of the dense model: {perplexity(dense, text, 256):.2f}")

# %% [markdown]
# ## Which layers go (section 3.1, Eq. 2)
#
# $$\ell^* = \operatorname{argmax}_\ell\; \mathbb{E}\,\cos\left(X^{(\ell)}, X^{(\ell+n)}\right)$$
#
# One pass collects what selection and scales need: cosines across every window, and mean magnitudes per channel, both
# of $X$ and of the rotated $XH$. `[L]` is the best window, `[S]` the layers of lowest block influence one by one
# (ShortGPT).

# %%
count = 5
statistics = collect(decoder, windows, span=count, kinds=("token", "channel"))
window = linearpatch.select(statistics, count, "L")
scattered = linearpatch.select(statistics, count, "S")
print("[L]", window, "  [S]", scattered)
print(
    "[L] by the official code's cosine, along tokens per channel:", linearpatch.select(statistics, count, "L", "code")
)

# %%
start, stop = window[0], window[-1] + 1
cosines = {kind: [statistics.cosine(kind, s, s + count) for s in range(17 - count)] for kind in ("token", "channel")}
figure, axes = plt.subplots(figsize=(4.2, 2.4))
axes.plot(cosines["token"], "o-", color=BLUE, label="per token (Eq. 2)")
axes.plot(cosines["channel"], "s--", color=ORANGE, label="per channel (the code)")
axes.set(xlabel=f"first of {count} layers", ylabel="mean cosine")
above(figure, "toy model, 16 layers")
_ = axes.legend()

# %% [markdown]
# ## The mismatch (section 3.2, Figures 1a and 3)
#
# A cosine does not see magnitudes. The layer after the cut was trained on $X^{(\ell+n)}$ and now receives
# $X^{(\ell)}$, which is smaller, in every channel (Figure 1a) and at every layer on the way (Figure 3; the removed layers
# are shaded). Both are drawn from records.

# %% [markdown]
# ![|X| per channel on both sides of the window, its arithmetic mean over calibration tokens: the mismatch; on the
# toy model](../../figures/rendered/figure1a-linearpatch.svg)

# %% [markdown]
# ![Mean |X| at every layer's input, the removed layers shaded; on the
# toy model](../../figures/rendered/figure3-linearpatch.svg)

# %% [markdown]
# ## Scales per channel (Eq. 4)
#
# $$d_k = \frac{1}{BL}\sum_{i,j} \frac{|X^{(\ell+n)}_{ijk}|}{|X^{(\ell)}_{ijk}|}$$
#
# Taken literally, Eq. 4 is ruled by entries of $X^{(\ell)}$ near zero. The sentence that introduces it ("the ratio of mean
# activation magnitude") and the official code take means before they divide, and so does the default here; `elementwise` is
# the equation as printed.

# %%
detailed = collect(decoder, windows, span=count, pairs=[], elementwise=[(start, stop)], matrices=[(start, stop)])
for estimator in ("ratio-of-means", "pooled-l1", "elementwise", "least-squares"):
    d = linearpatch.channel_scales(detailed, start, stop, rotated=False, estimator=estimator)
    print(f"{estimator:15} mean {d.mean():8.2f}   least {d.min():6.2f}   largest {d.max():9.2f}")

# %% [markdown]
# The paper then varies the scales by a further factor,
#
# $$X^{(\ell+n)} = \alpha X^{(\ell)} \cdot d + f(\alpha X^{(\ell)} \cdot d, \theta^{(\ell+n)}),$$
#
# and finds $\alpha = 1$ best. `scale_stream` multiplies what a layer receives, after the patch. The five factors here cannot
# tell .85 from 1. Figure 1b, on more text and with the cut alone and $A$ beside it, can: here d is a little too large.

# %%
scaled = copy.deepcopy(dense)
linearpatch.prune(scaled, windows, count, layers=window, kind="diagonal")
for alpha in (0.7, 0.85, 1.0, 1.15, 1.3):
    with scale_stream(scaled, start, alpha):
        print(f"alpha {alpha:.2f}: perplexity {perplexity(scaled, text, 256):.2f}")

# %% [markdown]
# ![Mean |X| per channel after scaling, and perplexity as the scales are multiplied by alpha, on an axis that is cut
# off; on the toy model](../../figures/rendered/figure1b-linearpatch.svg)

# %% [markdown]
# ## Smoothing by rotation (section 3.3, Eqs. 5 to 7)
#
# $$\sigma_d = \frac{1}{C}\sum_k \sigma\left(\frac{|X^{(\ell+n)}_k|}{|X^{(\ell)}_k|}\right), \qquad X = (XH)H^\top$$
#
# One scale per channel can serve all tokens only if $\sigma_d$ is small. The Walsh-Hadamard matrix $H$ spreads what
# stands out over all channels. It is built for any order that a construction exists for (192 = 12 x 16 here), and
# applied without being built.

# %%
h = hadamard_matrix(192)
x = torch.randn(4, 192, dtype=torch.float64)
print("H orthonormal:", torch.allclose(h @ h.T, torch.eye(192, dtype=torch.float64)))
print("fast transform:", torch.allclose(hadamard_transform(x), x @ h))
spreads = [detailed.spread(start, stop, rotated=rotated) for rotated in (False, True)]
print("sigma_d plain {:.1f}, rotated {:.1f} on these windows (the figures' records have other text)".format(*spreads))

# %% [markdown]
# In the paper $\sigma_d$ falls from 2137.75 to 230.32 (LLaMA-2-7B, nine layers); on SmolLM2 it rises. No verdict rests on it:
# where a channel's density at zero is positive, the mean of $1 / X^2$ is infinite, and the entries nearest zero decide.
# Massive tokens, its reason for the rotation, do not occur in the toy model; what stands out here are a few channels.

# %% [markdown]
# ![Each token's largest magnitude at the cut; on the toy model](../../figures/rendered/figure1c-linearpatch.svg)

# %% [markdown]
# ![Each token's largest magnitude at the cut after the rotation, on the scale of 1c; on the
# toy model](../../figures/rendered/figure1d-linearpatch.svg)

# %% [markdown]
# ## The patch (section 3.4, Eq. 8)
#
# $$X_{\text{new}} = X\,H\,\mathrm{diag}(d)\,H^\top = X A$$
#
# As it is written $A$ is symmetric, and $d$ are its eigenvalues. (The spectral theorem, which the paper names, says the
# reverse: every symmetric matrix has this form, for some orthogonal $H$.) It is kept as one matrix, one product per forward
# pass.

# %%
scales = linearpatch.channel_scales(statistics, start, stop)
patch = linearpatch.LinearPatch(scales)
a = patch.matrix().double()
print(
    "symmetric:",
    torch.allclose(a, a.T),
    "  eigenvalues are d:",
    torch.allclose(torch.linalg.eigvalsh(a), scales.sort().values, atol=1e-5),
)

# %% [markdown]
# `prune` does all of it: selection, scales, surgery, patch. The pruned model is a plain Hugging Face model with a
# hook, saved and reloaded by `common.models.checkpoint`, and generates as usual.

# %%
pruned = copy.deepcopy(dense)
report = linearpatch.prune(pruned, windows, count)
cut = copy.deepcopy(dense)
remove_layers(cut, report["removed"])
print(f"removed {report['removed']}", *(f"mean scale {one['scales']['mean']:.3f}" for one in report["patches"]))
print(f"perplexity: cut alone {perplexity(cut, text, 256):.2f}, with the patch {perplexity(pruned, text, 256):.2f}")
prompt = tokenizer("sort(values, key)\n\nReturn", return_tensors="pt")
print(tokenizer.decode(pruned.generate(**prompt, max_new_tokens=24, do_sample=False)[0]))

# %% [markdown]
# ## Distillation (section 3.4, Eq. 9)
#
# $$\min_A\; \mathbb{E}_X\, \mathrm{KL}\left(z(o_t^K),\, z(o_s^K)\right)$$
#
# Only the patch is trained, towards the dense model's $K = 100$ largest logits per token; nothing keeps it symmetric.
# Teacher and student share the layers before the cut, which run once per batch, and there is no second model in memory.
# The 32 calibration windows are a small taste of the paper's 5,000, at a rate twenty times its own.

# %%
distilled = copy.deepcopy(dense)
report = distill_cuts(distilled, statistics, window, windows, DistillationSettings(fitting=Fitting(learning_rate=2e-3)))
first, last = (sum(part) / 8 for part in (report["losses"][:8], report["losses"][-8:]))
print(f"{report['steps']} steps, mean KL of the first 8 {first:.3f}, of the last 8 {last:.3f}")
print(f"perplexity: with A {perplexity(pruned, text, 256):.2f}, distilled {perplexity(distilled, text, 256):.2f}")
trained = patches(distilled)[0].module.matrix()
print(f"A is no longer symmetric: largest |A - A'| {(trained - trained.T).abs().max():.3f}")

# %% [markdown]
# The records have longer trainings. Figure 5, ours, shows their losses.

# %% [markdown]
# ![Loss against step, raw (faint) and smoothed: a panel for each kind of loss, a line for each row that was trained; on
# the toy model](../../figures/rendered/figure5-linearpatch.svg)

# %% [markdown]
# ## What is trained, and towards what (section 4.4, Table 4)
#
# LLM-Streamline puts a randomly initialised feed-forward network in the place of the window; the paper reports that it
# diverges when it is trained on logits. Here it does not: its loss falls, and still its perplexity ends above the cut's.

# %%
Markdown(tables.render(show.build(registry.get("table4-linearpatch"), store, "standin"), "md"))

# %% [markdown]
# ## The ingredients (section 4.4, Table 5)
#
# The rows marked (ours): one factor, the mean of d, in place of one per channel; the same patches by least squares, and any
# matrix, which the section after next explains; and `extensions.refit`, which refits the output matrices before the cut
# and of the layers after it in closed form and puts nothing in between.

# %%
Markdown(tables.render(show.build(registry.get("table5-linearpatch"), store, "standin"), "md"))

# %% [markdown]
# ## Overhead (section 4.4, Table 6; appendix A, Table 7)

# %%
Markdown(tables.render(show.build(registry.get("table6-linearpatch"), store, "standin"), "md"))

# %%
Markdown(tables.render(show.build(registry.get("table7-linearpatch"), store, "standin"), "md"))

# %% [markdown]
# ## When matching magnitudes helps (ours)
#
# Least squares on the same pass gives another factor: minimise $\sum_t |x_t a - y_t|^2/|x_t|^2$. For one factor the
# answer is
#
# $$a = \mathbb{E}\left[\cos(x_t, y_t)\,\frac{|y_t|}{|x_t|}\right],$$
#
# the ratio of norms **times the cosine**. Where the removed layers turn the stream, matching magnitudes scales too
# much; where they mostly amplify it, both agree. With any matrix in place of a factor, least squares also puts back a
# part of what the layers added.
#
# A rule of thumb follows: a patch should lower perplexity where it leaves less of this error on calibration text than
# doing nothing does, which is 1.

# %%
moments = detailed.least_squares(start, stop)
print(f"cosine across the window {statistics.cosine('token', start, stop):.3f}")
print(f"ratio of magnitudes {statistics.ratio(start, stop).mean():.3f}, least squares {moments.scalar():.3f}")
print(f"error left by A from magnitudes {moments.unexplained(scales, rotated=True):.3f}")
print(f"error left by A from least squares {moments.unexplained(moments.channels(True), rotated=True):.3f}")
print(f"error left by the best matrix {moments.unexplained(moments.matrix()):.3f}  (1: doing nothing)")

# %%
for title, removed in (("[L]", window), ("[S]", scattered)):
    repaired = copy.deepcopy(dense)
    linearpatch.prune(repaired, windows, count, layers=removed, kind="matrix", estimator="least-squares")
    magnitude, bare = copy.deepcopy(dense), copy.deepcopy(dense)
    linearpatch.prune(magnitude, windows, count, layers=removed)
    remove_layers(bare, removed)
    scores = [perplexity(model, text, 256) for model in (bare, magnitude, repaired)]
    print(title, "cut alone {:.2f}, A {:.2f}, least-squares matrix {:.2f}".format(*scores))
    print("    patches:", [(p.position, p.kind) for p in patches(repaired)])

# %% [markdown]
# By the rule A should have done a little harm at this window, and it helped: a rule of thumb only. The same error suggests
# which basis suits a cut, the rotated one of A or the plain one of d: at [S]'s first, which lies between early layers,
# where single channels change much and a rotation mixes them, d.

# %%
pairs = [(start, stop), *runs(scattered)]
moments_of = collect(decoder, windows, span=count, pairs=[], moments=pairs)
for pair in pairs:
    found = moments_of.least_squares(*pair)
    plain, rotated = (moments_of.ratio(*pair, rotated=r) for r in (False, True))
    print(pair, f"error left by d {found.unexplained(plain):.3f}, by A {found.unexplained(rotated, rotated=True):.3f}")

# %% [markdown]
# Figure 4, ours, tries eleven windows of four layers, all but those with the first or the last: the factor that is best for
# perplexity against three predictions, and what each repair does to perplexity. How often the rule is right is in its table
# in the README beside this notebook: at 10 of these 11 cuts; on SmolLM2, where A lowers perplexity at each of 8, at 4.

# %% [markdown]
# ![Ours: the best single factor per cut, the predictions, and what each repair does to perplexity, on logarithmic axes;
# on the toy model](../../figures/rendered/figure4-linearpatch.svg)

# %% [markdown]
# ## A small run on a real LLM
#
# SmolLM2-135M-Instruct, whose weights come with a package of the package index (fetched once), loses the best window of 7 of
# its 30 layers by eight crops of docstrings, the toy model its 5 of 16 from above. Perplexity is of six held-out windows from
# each of two domains. So few windows of docstrings are no evidence, least of all where the domains disagree: the published
# records, in the next section and the last, judge the claims.

# %% tags=["downloads"]
llm, words = loading.load("smollm2-135m-instruct", dtype="bfloat16")
crops = calibration.sample_crops(corpora.joined_ids(words, "standin-calibration"), length=256, count=8, seed=2)
seen = collect(Decoder(llm), crops, span=7)
gone = linearpatch.select(seen, 7, "L")
print("SmolLM2's [L]", gone)

# %% tags=["downloads"]
for name, net, reader, found, removed in (
    ("toy model", dense, tokenizer, statistics, window),
    ("SmolLM2", llm, words, seen, gone),
):
    bare, plain, rotated = (copy.deepcopy(net) for _ in range(3))
    remove_layers(bare, removed)
    linearpatch.patch_cuts(plain, found, removed, kind="diagonal")
    linearpatch.patch_cuts(rotated, found, removed, kind="hadamard")
    for domain in ("numerical", "learning"):
        read = corpora.joined_ids(reader, domain)[: 6 * 256]
        scores = [perplexity(each, read, 256) for each in (net, bare, plain, rotated)]
        print(f"{name:8} {domain:9}", "dense {:.2f}, cut alone {:.2f}, +d {:.2f}, +A {:.2f}".format(*scores))

# %% [markdown]
# ## The records of that LLM
#
# SmolLM2-135M-Instruct has what the toy model lacks: massive activations, but not at every cut. Where 7 of 30 layers go they
# cross it. Where 8 go layer 11, which writes them, goes too: Figures 1c and 1d, taken there, find none, and the rotation
# widens $\sigma_d$. From published records: Table 1's rows, and the patch in pieces at the cuts of 7 of 30 (Figure 6,
# ours). "A's diagonal" is one factor for all channels, "A at 50 %" half of A and half of no patch; massive channels are
# those whose mean magnitude at the cut is ten times the median one's. From "A of fewer tokens" on, scales are from 32 other
# windows: hold these rows against that one, not against A. What A does to the massive tokens themselves harms: where they
# stay as they are it lowers perplexity further.

# %%
real = subjects.of_model("smollm2-135m-instruct")
Markdown(tables.render(show.build(registry.get("table1-linearpatch"), store, real), "md"))

# %% [markdown]
# ![What each piece of the patch changes perplexity by, in percent: a line a piece, a mark a cut, with its interval; on
# SmolLM2-135M-Instruct](../../figures/rendered/figure6-linearpatch-smollm2-135m-instruct.svg)

# %% [markdown]
# ## What holds
#
# **Can one matrix put back what removed layers took?** Some of it, on these two models: the patch lowers perplexity in
# every setting of Table 11 (by 9.9 % and 2.6 % at least), but not to where the dense model is, and answers to questions do
# not follow: on SmolLM2 no average of tasks differs beyond the noise (single tasks do, both ways), on the toy model [L]'s
# patch costs some. The rotation is not what does it: over [S]'s cuts plain scales d have the lower perplexity on both. Any
# matrix, by least squares, lowers it further at every cut of Figure 4.
#
# Every claim of the paper's tables and figures, on its own printed numbers, on SmolLM2-135M-Instruct and on the toy model,
# from the published records: how many of its comparisons hold, then the one least in its favour with its 95 % interval.

# %%
Markdown(findings.every("linearpatch", store))
