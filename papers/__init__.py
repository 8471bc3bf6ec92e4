"""One package per paper: the method, and the numbers the paper reports. Papers never import one another."""
