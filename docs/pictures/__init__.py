"""The pictures of docs/gallery.md: functions that compute arrays, and functions that draw them."""
