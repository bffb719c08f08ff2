"""From runs and the operator's log to what held when, to incidents and their causes. Plain functions on some thousand runs."""
