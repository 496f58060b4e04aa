"""The program that streams build: its operators, edges and settings, as a job graph."""
