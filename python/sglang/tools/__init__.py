"""Small programs that prepare what the server serves: model folders."""
