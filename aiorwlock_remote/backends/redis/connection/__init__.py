"""One connection to one Redis server: what is said on it, by which driver, how kept."""
