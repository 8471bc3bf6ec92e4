"""Training: fine-tuning, distillation from the original model, and the data of both."""
