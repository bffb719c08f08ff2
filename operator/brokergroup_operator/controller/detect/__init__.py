"""Is the master dead, and has the record gone back?"""
