"""Whether torch.compile fuses the model's operators."""

ORDER = 70
