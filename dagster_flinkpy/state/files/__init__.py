"""The files of state: sorted runs, their layout on disk, merging, local copies and transfers."""
