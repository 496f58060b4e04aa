"""What an epoch starts from and reads."""
