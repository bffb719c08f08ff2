"""The files of a report. The same input gives the same bytes: nothing in them says when or where they were made."""
