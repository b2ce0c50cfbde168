"""From a source to indexed segments: parse, clean, split, index, complete."""
