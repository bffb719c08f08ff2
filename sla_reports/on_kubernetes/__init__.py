"""What the image of the reports needs so that Spark can run it in pods; nothing of it is used on a laptop."""
