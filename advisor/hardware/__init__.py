"""What is known of cards and of renting them: how they are joined, and what so many of them cost."""
