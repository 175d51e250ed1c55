"""Filters of the console's templates."""
