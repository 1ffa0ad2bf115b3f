"""The views of the glass box, one file a view: widgets that read one `Glass`, of which one at a time is shown."""
