"""Plan, launch and judge language-model training runs on one's own or rented GPUs."""

__version__ = "0.1.0"
