"""The web console: views, templates and one small script. It has no models; it asks selectors and calls services."""
