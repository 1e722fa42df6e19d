"""Real servers for tests, and what stands between a test and them."""
