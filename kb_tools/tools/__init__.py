"""What agents call: the retrieval tool, and a retriever for chains."""
