"""The verbs that change knowledge, and those that look at it."""
