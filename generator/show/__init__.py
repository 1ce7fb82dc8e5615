"""What a person reads in a terminal: the plan, why and why-not, listings."""
