module brokergroup.dev/operator/tests/real/parts/pause

go 1.25.0
