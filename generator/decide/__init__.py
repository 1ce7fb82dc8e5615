"""The choice: the space of techniques, the search, the reasons, what to do when nothing fits."""
