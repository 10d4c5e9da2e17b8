"""Metrics of answers and of the distributions that numbers are read from, and what is known about each."""
