"""Pure decisions: facts in, outcome out. No clock, no random numbers, no input or output."""
