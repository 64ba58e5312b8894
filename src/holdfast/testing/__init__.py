"""What is published for tests: the conformance suite, and the pytest plugin that runs it."""
