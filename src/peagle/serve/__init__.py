"""HTTP in front of a model: requests in, tokens streamed back, many answers at a time."""
