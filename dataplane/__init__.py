"""The data plane: gateway, replicas and fleet. Nothing in here knows Django."""
