"""The Streamlit app: one file per page, widgets in, render out. No arithmetic here: every number is another room's."""
