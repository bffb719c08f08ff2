"""AutoSwitchHA both ways: how the log gets from a master to its slaves."""
