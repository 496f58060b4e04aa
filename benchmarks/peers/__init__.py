"""Other engines, with the programs of our benchmarks. Rates are events per second without the time to start."""
