"""The operators as a task runs them."""
