"""What workflows add: the retrieval node and a state whose parallel branches join."""
