"""The one seam to the outside: the protocol, this machine live, a recording."""
