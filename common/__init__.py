"""Everything the four papers share: models, statistics, layer selection, surgery, measurement. It knows no paper."""
