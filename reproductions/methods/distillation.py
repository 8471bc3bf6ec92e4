"""LinearPatch's distillation and LLM-Streamline in recipes."""
