"""Start ranks and measure: the live test, connection tests, tuning; all that is started is dead when they return."""
