"""A thin asyncio client of the Kubernetes API, for the paths where a deadline on every request matters."""
