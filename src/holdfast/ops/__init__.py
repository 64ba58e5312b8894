"""Every store operation, written once, as a generator of named steps."""
