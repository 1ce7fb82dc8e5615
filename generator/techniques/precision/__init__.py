"""In which number format it computes, and in which the weights are kept."""

ORDER = 20
