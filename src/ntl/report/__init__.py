"""Report finished runs: group them over seeds, write tables, draw figures."""
