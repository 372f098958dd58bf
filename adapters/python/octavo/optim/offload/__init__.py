"""States and gradients in host memory."""
