"""The plan as a project: the document that templates print, the files, the folder they land in."""
