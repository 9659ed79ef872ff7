"""Turn the text of a report into a draft card: what it declares and claims, each with its line."""
