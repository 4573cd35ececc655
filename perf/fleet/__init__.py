"""A fleet of servers on paper: what no machine of a developer holds."""
