"""What only ``make demo`` needs: its input, its runner, and an independent computation of the right result."""
