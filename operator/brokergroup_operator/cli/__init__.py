"""The commands `brokergroup` and `kubectl brokergroup`."""
