"""Report finished runs: read them into one table, and write tables, tests of contrasts and figures."""
