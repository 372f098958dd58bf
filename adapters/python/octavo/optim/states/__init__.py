"""The state of one parameter: its tensors, how a step knows that they are unchanged, and repairs."""
