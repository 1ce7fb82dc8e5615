"""One folder an axis, one file a technique. They are found by import: to add one, add a file (see CONTRIBUTING.md)."""
