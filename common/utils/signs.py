"""Write numbers with a true minus sign."""

import math
import re


def signed(value: float, form: str) -> str:
    """Format a number with a true minus sign; a number that rounds to zero has no sign.

    >>> signed(-1.25, "+.1f"), signed(0.01, "+.1f"), signed(-0.004, ".2f")
    ('−1.2', '0.0', '0.00')
    """
    text = f"{value:{form}}"
    if math.isfinite(value) and not re.search("[1-9]", text):
        text = text.lstrip("+-")
    return text.replace("-", "−")
