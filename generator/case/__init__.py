"""What is to be done, with what, on which devices: everything that a decision may depend on."""
