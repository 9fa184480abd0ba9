"""Speed of our engine and of others, measured side by side by one client in one run."""
