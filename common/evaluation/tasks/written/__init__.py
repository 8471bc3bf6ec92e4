"""Questions of multiple-choice tasks without their options: the model writes the answer."""
