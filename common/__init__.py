"""Everything the four papers share: models, statistics, layer selection, surgery, measurement. It knows no paper."""

import logging

# On import it asks in vain for a hub kernel that nothing here uses, and says so to everyone.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
