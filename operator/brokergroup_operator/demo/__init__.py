"""The demo: a broker group under load that fails over twice while you watch."""
