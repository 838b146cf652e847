"""What several test modules share: configurations, providers that count or fail, generated entities."""
