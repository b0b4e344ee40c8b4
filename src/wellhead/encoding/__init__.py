"""Hidden states on the wire: one file per format, and ``registry`` to find them by media type. No torch."""
