"""The app by `streamlit run streamlit_app.py`; `advisor app` runs the same frame from an installed package."""

from advisor.ui.frame import main

main()
