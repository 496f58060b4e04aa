"""Where the files of jobs and savepoints may be, and what a program would read of its own."""
