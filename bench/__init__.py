"""The measures: what a turn costs, always against code that was written by hand for the same."""
