"""Schema: declarations of every relation as data, from which SQL, codecs and memory layouts are generated."""
