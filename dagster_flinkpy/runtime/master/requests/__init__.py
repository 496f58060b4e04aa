"""What others ask of a running attempt, and the savepoints it writes for them."""
