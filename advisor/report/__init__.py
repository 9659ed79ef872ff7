"""Turns computed records into words, tables and charts: console, Markdown, self-contained HTML, CSV. No arithmetic."""
