"""Tables beside the log, in files as Java writes them: topics, consumer groups, offsets."""
