"""Writing what was read as a folder that replays, without what names a person or a board."""
