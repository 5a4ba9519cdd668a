"""Start ranks and measure: the live test, connection tests, tuning.

All that is started is dead when they return.
"""
