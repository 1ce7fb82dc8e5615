"""Which parameters are trained: the user's choice (``--train``)."""

ORDER = 10
