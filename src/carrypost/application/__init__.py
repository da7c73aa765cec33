"""The application's side of one node: its subscriptions, its deliveries and its publications."""
