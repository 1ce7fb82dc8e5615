"""Which form the adapters have: the user's choice (``--adapter``)."""

ORDER = 12
