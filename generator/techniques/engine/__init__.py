"""What runs a served model: Transformers itself, or an engine with its own code and environment."""

ORDER = 8
