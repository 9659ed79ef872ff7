"""The Streamlit app. Each page is one file that reads widgets and renders. Other rooms compute every number shown."""
