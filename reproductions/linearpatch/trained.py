"""Declare trained recipes: distillation of the patch, and LLM-Streamline's networks (Tables 2 to 6)."""

from reproductions.linearpatch.recipes import TOP_K
from reproductions.spec.shared_recipes import CALIBRATION, DISTILLING, contiguous_block, streamline_layer
from reproductions.spec.subjects import Subject

# Table 4's rows as the reported numbers name them: model logits by KL, the replaced layers' output by MSE.
FFN_MSE, FFN_KL = (f"LLM-Streamline(FFN) +FT, {target}" for target in ("layer output, MSE", "logits, KL"))
MSE, DIAGONAL, FULL = (
    f"LinearPatch[L +FT, {target}]" for target in ("layer output, MSE", "diagonal, logits, KL", "logits, KL")
)
# The paper does not say in which basis its diagonal is. DIAGONAL is read as d in H diag(d) H^T; ours is diag(d), "+d".
PLAIN_DIAGONAL = "distilled-plain-diagonal"
# What the official code does when it is told to train a diagonal: a dense matrix that starts as diag(d).
CODE_DIAGONAL = "distilled-code-diagonal"
FROM_MATRIX = "distilled-from-least-squares"
# The patch and the rival where massive tokens stay as they are: the rival's loss is the first token's alone else.
SPARED, FFN_SPARED = "distilled-spared", "ffn-spared"
LAYER = "streamline-layer"
# The labels of rows that the paper does not have.
NAMES = {
    PLAIN_DIAGONAL: "LinearPatch[L +FT, plain diagonal, logits, KL] (extension)",
    CODE_DIAGONAL: "LinearPatch[L +FT, matrix from diag(d): the code's diagonal, logits, KL] (extension)",
    FROM_MATRIX: "LinearPatch[L +FT, from the least-squares matrix, logits, KL] (extension)",
    SPARED: "LinearPatch[L +FT], massive tokens unchanged (extension)",
    FFN_SPARED: "LLM-Streamline(FFN) +FT, massive tokens unchanged (extension)",
    LAYER: "LLM-Streamline(layer) +FT, layer output, MSE (extension)",
}

# LLM-Streamline's feed-forward network in the place of the block, before any training.
FFN = {"method": "streamline-ffn"}

_LOGITS = {"target": "logits", "top_k": TOP_K}
_OUTPUT = {"target": "output"}
_DISTILLED = {"method": "linearpatch-distilled"}
_REPAIRS = {
    FFN_MSE: FFN | _OUTPUT,
    FFN_KL: FFN | _LOGITS,
    FFN_SPARED: FFN | _OUTPUT | {"spare_massive": True},
    MSE: _DISTILLED | {"trainable": "matrix"} | _OUTPUT,
    DIAGONAL: _DISTILLED | {"trainable": "diagonal"} | _LOGITS,
    FULL: _DISTILLED | {"trainable": "matrix"} | _LOGITS,
    SPARED: _DISTILLED | {"trainable": "matrix", "acts_on": "ordinary"} | _LOGITS,
    CODE_DIAGONAL: _DISTILLED | {"trainable": "matrix-from-diagonal"} | _LOGITS,
    PLAIN_DIAGONAL: _DISTILLED | {"trainable": "plain-diagonal"} | _LOGITS,
    FROM_MATRIX: _DISTILLED | {"trainable": "matrix", "kind": "matrix", "estimator": "least-squares"} | _LOGITS,
}
METHODS = (FFN_MSE, FFN_KL, MSE, DIAGONAL, FULL, LAYER, CODE_DIAGONAL, PLAIN_DIAGONAL, FROM_MATRIX)


def fields(method: str, count: int, subject: Subject) -> dict:
    """Return a recipe's fields for a trained row of Table 4 by its id, one of METHODS."""
    if method == LAYER:
        return streamline_layer(count, subject)
    repair = _REPAIRS[method] | DISTILLING[subject.size]
    return {"selection": contiguous_block(count), "calibration": CALIBRATION[subject.profile], "repair": repair}
