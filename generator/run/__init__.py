"""Run a generated project a few steps, say what went wrong, set predicted against measured."""
