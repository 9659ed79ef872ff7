"""From the text of a report to a draft card: what it declares and claims, each with its line."""
