"""A double of Oracle's wire in front of PostgreSQL; README.md says what it is not."""
