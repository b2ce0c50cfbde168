"""Retrievers: each finds segments in its own way; `base` holds what they share."""
