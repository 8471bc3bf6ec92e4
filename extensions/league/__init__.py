"""The league (extension): every training-free repair after every selection of layers, on one calibration budget.

All rows start from the same original model.
"""

from extensions.league.ablation import ABLATION, DRAWS
from extensions.league.answers import ANSWERS
from extensions.league.blocks import BLOCKS
from extensions.league.distilled import DISTILLED
from extensions.league.grafts import GRAFTS
from extensions.league.measures import MEASURES
from extensions.league.questions import QUESTIONS
from extensions.league.tables import TABLES as _TABLES
from extensions.league.texts import TEXTS

TABLES = [*_TABLES, ANSWERS, TEXTS, BLOCKS, GRAFTS, DISTILLED, MEASURES, QUESTIONS, ABLATION, DRAWS]

__all__ = ["TABLES"]
