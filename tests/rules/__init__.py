"""The decision rules of the guides as a table: each with cases that take it and cases that do not."""
